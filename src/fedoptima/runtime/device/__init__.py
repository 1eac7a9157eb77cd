"""The device process: its connection, its core, what it keeps."""
