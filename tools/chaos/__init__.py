"""Chaos over real processes: faults on a server, its devices, their network and their disks."""
