"""A run's configuration: one typed tree, strict, the same for files, flags and Python."""
