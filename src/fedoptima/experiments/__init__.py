"""Runs set up and carried out: simulated, served, joined, or a whole fleet on this machine."""
