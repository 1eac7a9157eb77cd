"""Measurements. They print and record figures; they never fail a test run."""
