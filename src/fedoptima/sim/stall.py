"""Why nothing can happen any more in a simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedoptima.core.errors import Stalled
from fedoptima.core.types import NodeId
from fedoptima.sim.state import SimDevice


def stalled(devices: Mapping[NodeId, SimDevice]) -> Stalled:
    return Stalled(f"nothing can happen any more, but the run is not over: {_who_is_left(devices)}")


def _who_is_left(devices: Mapping[NodeId, SimDevice]) -> str:
    away = sorted(name for name, device in devices.items() if not device.connected)
    by_reason: dict[str, list[str]] = {}
    for name, device in devices.items():
        # Without the name: devices with the same trouble are listed together.
        by_reason.setdefault(device.trouble.replace(f" of {name} ", " "), []).append(name)
    fine = by_reason.pop("", [])
    troubles = _first_of(
        [
            f"{', '.join(names[:3])}{' ...' * (len(names) > 3)}: {why}"
            for why, names in by_reason.items()
        ]
    )
    if not fine:
        return f"every device has failed or was dropped: {troubles}"
    if len(away) == len(devices):
        why = f" ({troubles})" if troubles else ""
        return (
            f"every device has left for good{why}; let some of them return, or end the run earlier"
        )
    hung = sorted(name for name, device in devices.items() if device.hung)
    if not hung and not away:
        return (
            f"all devices are connected, and the server has answered none of {_first_of(fine)}; an "
            "aggregation policy of your own has to name each device that hands in in the `refresh` "
            "of some Decision"
        )
    return (
        f"hung: {', '.join(hung) or 'none'}; away: {', '.join(away) or 'none'}; "
        "a barrier waits for a device that is away if method.on_leave is 'wait'"
    )


def _first_of(troubles: Sequence[str]) -> str:
    more = f"; and {len(troubles) - 3} more" if len(troubles) > 3 else ""
    return "; ".join(troubles[:3]) + more
