"""A process of its own between a server and its stderr: takes out the lines on TLS handshakes.

Run as a script by `handshake_log`: what is to be explained goes to stdout, every other line to
stderr, unchanged; only what gRPC remarks and no operator would act on is left out. A process and
not a thread, because a thread would need the interpreter's lock, which the writer of a line into a
full pipe may hold, and because the last words of a server that crashes must still come out: they
are read to their end whatever becomes of the server. Standard library only, and little of it: this
is loaded without the package.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress

READY = b"ready\n"
MARK = b"ssl_transport_security"  # the file of gRPC that reports every handshake that fails
# gRPC's informations, and addresses it could not listen on: that raises an error anyway.
_REMARK = re.compile(rb"(I\d{4} [\d:.]+ +\d+ \w+\.cc|E\d{4} [\d:.]+ +\d+ add_port\.cc):\d+\] ")


def main() -> None:
    refusals, others = sys.stdout.buffer, sys.stderr.buffer
    refusals.write(READY)
    refusals.flush()
    wanted = "GRPC_VERBOSITY" in os.environ  # by an operator, who is looking for something
    for line in sys.stdin.buffer:
        refused = MARK in line and b"Handshake failed" in line
        if not (refused or wanted) and _REMARK.match(line):
            continue
        goal = refusals if refused else others
        # A reader that has gone must not end this loop: the server's writes would fail then.
        with suppress(OSError):
            goal.write(line)
            goal.flush()


if __name__ == "__main__":
    main()
