"""What the repository needs beside the package: run as modules from its root."""
