"""Data sets, their division over the devices, and the batches a device trains on."""
