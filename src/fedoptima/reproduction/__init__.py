"""The figures of the paper's evaluation: their runs, worked off in pieces, and what they show."""
