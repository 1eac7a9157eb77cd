"""What a model learns: its loss, its labels, its metrics, and the shape of what it predicts."""
