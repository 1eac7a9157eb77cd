"""How robust merging withstands hostile devices."""
