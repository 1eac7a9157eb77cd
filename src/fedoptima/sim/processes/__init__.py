"""The executor that does a simulation's tensor work in several processes of one machine."""
