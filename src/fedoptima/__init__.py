"""Train one neural network across uneven devices and a server, with neither side waiting."""

__version__ = "0.1.0"
