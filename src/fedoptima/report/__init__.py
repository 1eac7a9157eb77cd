"""What a trace says: computed from records alone, by the same code for every mode and method."""
