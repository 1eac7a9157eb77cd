"""The server process: sessions, streams, checkpoints."""
