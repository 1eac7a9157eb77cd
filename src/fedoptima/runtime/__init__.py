"""The network driver: the same cores as in simulation, on a real clock, over gRPC."""
