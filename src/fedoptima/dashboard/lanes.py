"""The timeline as the page draws it: small enough for a message a second.

A row of shares is a string, one printable character a bin: "#" for nothing, "}" for all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedoptima.analysis.timeline import Timeline, TimelineAccount
from fedoptima.core.types import NodeId

WHOLE = 0  # the whole run
SPANS = (120, 600, WHOLE)  # seconds until now
MOST_BINS = 150
MOST_LANES = 24
_NOTHING, _STEPS = ord("#"), 90


def look(account: TimelineAccount, span: int) -> Timeline:
    return account.window(float(span)) if span else account.timeline()


def plain(timeline: Timeline, names: Sequence[str], began: float) -> dict[str, object]:
    """The first lanes of ``names``; times since the training ``began``."""
    first = round((timeline.start - began) / timeline.bin_seconds)
    fold = max(1, -(-timeline.bins // MOST_BINS))
    # Joined bins begin at multiples of their width: else they would flicker as time goes on.
    before = first % fold
    shown = [NodeId(name) for name in names][:MOST_LANES]
    return {
        "start": (first - before) * timeline.bin_seconds,
        "bin_seconds": timeline.bin_seconds * fold,
        "lanes": [
            {
                "name": name,
                "shares": {
                    kind.value: _written(_folded(shares, fold, before))
                    for kind, shares in timeline.lanes[name].shares.items()
                    if any(shares)
                },
            }
            for name in shown
            if name in timeline.lanes
        ],
        "left_out": sum(name in timeline.lanes for name in names[MOST_LANES:]),
    }


def _folded(shares: Sequence[float], fold: int, before: int) -> list[float]:
    padded = [*[0.0] * before, *shares]
    return [sum(padded[at : at + fold]) / fold for at in range(0, len(padded), fold)]


def _written(shares: Sequence[float]) -> str:
    return "".join(chr(_NOTHING + round(_STEPS * min(1.0, share))) for share in shares)
