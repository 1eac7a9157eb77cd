"""Simulation: the cores on a virtual clock, with real maths or with none (dry)."""
