"""What crosses the network: frames, messages, tensors."""
