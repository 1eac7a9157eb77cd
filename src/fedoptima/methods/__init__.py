"""The training methods, each a choice of five policies."""
