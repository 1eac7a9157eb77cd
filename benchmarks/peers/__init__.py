"""Other simulators on our workloads. Their packages are in an environment of their own."""
