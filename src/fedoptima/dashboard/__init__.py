"""The live page: a process of its own that reads a run's files and shows them in a browser."""
