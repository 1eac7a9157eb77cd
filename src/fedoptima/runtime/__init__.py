"""The network driver: the same cores as in simulation, on a real clock, over gRPC."""

import os

# gRPC reports every peer that goes away on stderr, from its C core; what matters is in our own log.
# It reads the variable when it is first imported, so it is set here, before any module does that.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
