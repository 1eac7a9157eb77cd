"""What happened in a run, as data: written by both drivers, read by everything that analyses."""
