"""Seeds derived from what they are for, never from a running generator.

A step's random numbers depend only on (seed, node, step), so steps can be re-executed after a
restore, run in another order or in a batch, and still draw the same numbers.
"""

from __future__ import annotations

from hashlib import blake2b


def derive(seed: int, *labels: str | int) -> int:
    """A 63-bit seed for the purpose that ``labels`` name; the same on every machine."""
    text = "/".join(map(str, (seed, *labels)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
