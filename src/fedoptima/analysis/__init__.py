"""What the records of a run mean: idle time, curves, traffic, memory, staleness, findings."""
