"""What a report draws: pure functions from views of runs to figures, as plotly's plain data."""
