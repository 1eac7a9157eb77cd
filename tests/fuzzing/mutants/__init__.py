"""Planted bugs, each of which the fault simulation has to find.

Nowhere else do tests patch classes of ours; here planting bugs in them is the point. Where a policy
would notice its bug by its own `check`, that is patched away, too: the laws must not rely on it.
"""

from tests.fuzzing.mutants import activations, barriers, devices, sessions, updates
from tests.fuzzing.mutants.planting import MUTANTS, planted

__all__ = ["MUTANTS", "activations", "barriers", "devices", "planted", "sessions", "updates"]
