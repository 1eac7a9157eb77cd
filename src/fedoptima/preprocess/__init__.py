"""The Pre-processor: what a model's blocks cost, where to cut it, what to train on a device."""
