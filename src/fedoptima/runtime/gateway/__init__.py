"""Processes that stand in front of the server, so that encryption and copies use all cores."""
