"""Setting up and executing runs: simulated, served, joined, or a whole fleet on this machine."""
