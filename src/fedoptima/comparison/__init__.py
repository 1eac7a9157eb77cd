"""Several methods under equal conditions: runs side by side, one table."""
