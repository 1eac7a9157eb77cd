"""How far plain training on one machine gets with a recipe's model and data."""
