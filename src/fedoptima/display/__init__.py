"""What is shown while something works, and Ctrl-C: the same at the command line and from Python."""
