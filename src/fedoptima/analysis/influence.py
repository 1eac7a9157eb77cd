"""What a result warns of, above all a device whose part of merges and of data differ a lot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fedoptima.analysis.balance import Balance, Contribution
from fedoptima.analysis.formatting import listed, percent
from fedoptima.analysis.problems import in_words
from fedoptima.analysis.summary import Summary
from fedoptima.core.types import NodeId

# At the paper's spread of speeds (1 to 9) the slowest device has a seventeenth of its share.
WARNING_FACTOR: Final = 20.0

_FEWEST = 3  # updates of a device: with less, the run was too short to say something about it
_BARRIER = ("fl", "splitfed", "pipar", "cse_fsl")


def warnings_of(summary: Summary, method: str) -> Iterator[str]:
    """All that a result warns of."""
    yield from in_words(summary.problems)
    yield from influence_warnings(summary.balance, method)


def influence_warnings(balance: Balance, method: str) -> Iterator[str]:
    seen = {n: device for n, device in balance.devices.items() if device.handed_in >= _FEWEST}
    if not any(device.updates for device in seen.values()):
        return
    little = {n: d for n, d in seen.items() if d.merge_share * WARNING_FACTOR < d.data_share}
    much = {n: d for n, d in seen.items() if d.merge_share > d.data_share * WARNING_FACTOR}
    if little:
        way_out = (
            "updates came after the barrier had opened, or got lost: raise method.barrier_timeout"
            if method in _BARRIER
            else "updates that come late weigh little, or are refused: leave method.max_delay out, "
            'set method.staleness = "constant", shorten the rounds (training.iterations), or use a '
            "method with a barrier (fl)"
        )
        yield f"{_compared(little)}, less than a {WARNING_FACTOR:g}th of it; {way_out}."
    if much:
        yield (
            f"{_compared(much)}, more than {WARNING_FACTOR:g} times as much; let the others be "
            "merged (leave method.max_delay out), lower method.alpha_max, or use a method with a "
            "barrier (fl)."
        )


def _compared(devices: Mapping[NodeId, Contribution]) -> str:
    held = percent(sum(device.data_share for device in devices.values()))
    had = percent(sum(device.merge_share for device in devices.values()))
    return f"{listed(list(devices))} held {held} of the data and had {had} of the merge weight"
