"""Fault simulation: the real cores in a network that does its worst, and the laws they keep.

A seed becomes a script: a method with its options, a small fleet, and what goes wrong when. The
cores play it with toy engines on a virtual clock, so that a thousand scripts take seconds.
"""
