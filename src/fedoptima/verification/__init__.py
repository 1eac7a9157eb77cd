"""The proof that a recorded run is what the cores and the engines say."""
