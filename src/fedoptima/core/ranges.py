"""The figures that a peer may send, field by field, and the odd ones among its peers.

A figure outside its range is refused with a message that names field, value and range. The bounds
are far outside of anything that exists: a figure inside them may still be a lie, so nothing that is
decided for all devices follows from one device's figures (`core.shares`, `usual_speeds`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from statistics import median_high
from typing import Final, Protocol

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.messages import (
    ActivationBatch,
    Assignment,
    GlobalModel,
    GradientBatch,
    Join,
    Message,
    ModelUpdate,
    ProgramSpec,
)
from fedoptima.core.types import NodeId

MOST: Final = 2**53  # of anything that is counted: the highest integer that JSON keeps exactly
MOST_SAMPLES: Final = 10**9

_COUNT = (0, MOST)
_RANGES: Final[dict[type, dict[str, tuple[float, float]]]] = {
    Join: {
        "incarnation": _COUNT,
        "samples": (1, MOST_SAMPLES),
        "flops_per_second": (1.0, 1e18),
        "bytes_per_second": (1.0, 1e12),
        "version": (-1, MOST),
        "step": _COUNT,
        "cut": _COUNT,
    },
    # At most what was assigned: `Training` knows that.
    ModelUpdate: {
        "version": _COUNT,
        "trained": _COUNT,
        "forwarded": _COUNT,
        "cut": _COUNT,
        "seconds": (0.0, 1e12),
        "bytes_per_second": (0.0, 1e12),
    },
    ActivationBatch: {"seq": _COUNT, "part": _COUNT, "parts": (1, MOST), "cut": _COUNT},
    GradientBatch: {"seq": _COUNT, "part": _COUNT},
    GlobalModel: {"version": _COUNT, "progress": (0.0, 1.0)},
    Assignment: {"iterations": (1, MOST)},
    ProgramSpec: {"micro_batches": _COUNT, "train_every": _COUNT, "cut": _COUNT},
}


def check_figures(message: Message | ProgramSpec) -> None:
    """Raise ProtocolViolation for the first figure that is outside its range."""
    kind = type(message)
    for field, (low, high) in _RANGES.get(kind, {}).items():
        value = getattr(message, field)
        if not low <= value <= high:  # this also refuses NaN
            check_range(f"{kind.__name__}.{field}", value, low, high)


def check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ProtocolViolation(f"{name} = {value}: must be from {low:g} to {high:g}")


_NUMBERS = re.compile(r"/(0|[1-9][0-9]{0,15})/(0|[1-9][0-9]{0,15})")


def check_names(device: NodeId, message: Message) -> None:
    """A device names its payloads "device/incarnation/ticket": it cannot use another node's names.

    The server keeps payloads by their names, and remembers by them which updates were settled.
    """
    match message:
        case ActivationBatch(data=data) | ModelUpdate(data=data):
            name: str | None = data.id
        case Join(pending=pending):
            name = pending
        case _:
            return
    if name is None or (name.startswith(device) and _NUMBERS.fullmatch(name, len(device))):
        return
    raise ProtocolViolation(
        f"{type(message).__name__} names a payload {name[:60]!r}: "
        f"must be {device}/INCARNATION/TICKET"
    )


# ---- planning ------------------------------------------------------------------------------------

USUAL: Final = 10.0  # a device is planned for if it is within this factor of the median


class Speed(Protocol):
    @property
    def flops_per_second(self) -> float: ...  # o_k
    @property
    def bytes_per_second(self) -> float: ...  # b_k


def unusual_speeds(fleet: Mapping[NodeId, Speed]) -> dict[NodeId, str]:
    """The devices whose speeds the plan leaves out, and why.

    The split is the best one for the slowest device, so a single device that is, or claims to be,
    thousands of times slower than the others would decide how much all of them train. Where
    every device would be left out, none is.
    """
    found: dict[NodeId, str] = {}
    for figure in ("flops_per_second", "bytes_per_second"):
        claimed = {device: float(getattr(speed, figure)) for device, speed in fleet.items()}
        usual = median_high(claimed.values()) if claimed else math.nan
        for device, value in claimed.items():
            if not usual / USUAL <= value <= usual * USUAL:
                found.setdefault(
                    device,
                    f"{figure} = {value:g} is not within a factor of {USUAL:g} of the fleet's "
                    f"median, {usual:g}",
                )
    return found if len(found) < len(fleet) else {}
