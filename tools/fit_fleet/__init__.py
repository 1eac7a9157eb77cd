"""Which speeds explain the paper's results best? Fleets fitted to its numbers by dry runs."""
