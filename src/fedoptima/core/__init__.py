"""The algorithms as pure state machines: events in, effects out. Standard library only.

No clock, no I/O, no randomness, no torch. Two drivers perform the effects: `fedoptima.sim` on a
virtual clock, `fedoptima.runtime` over the network.
"""
