"""Several methods on the same footing: runs side by side, one table."""
