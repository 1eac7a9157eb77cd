"""Figures of each device on its own held-out data, beside those of the validation data.

They are metrics like others, by name: "accuracy@phone-1" of one device, and the mean and the worst
of all, "devices_mean_accuracy" and "devices_worst_accuracy".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedoptima.core.events import Metrics
from fedoptima.core.stopping import DEVICES_MEAN, DEVICES_WORST, OF_DEVICE


def with_devices(
    whole: Metrics, devices: Mapping[str, Metrics], falls: Callable[[str], bool]
) -> Metrics:
    """``falls``: is less of a metric better?"""
    own = {device: dict(figures) for device, figures in devices.items()}
    names = dict.fromkeys(name for figures in own.values() for name in figures)
    found = list(whole)
    for name in names:
        values = [figures[name] for figures in own.values() if name in figures]
        worst = max(values) if falls(name) else min(values)
        found.append((f"{DEVICES_MEAN}{name}", sum(values) / len(values)))
        found.append((f"{DEVICES_WORST}{name}", worst))
    for device, figures in own.items():
        found += [(f"{name}{OF_DEVICE}{device}", value) for name, value in figures.items()]
    return tuple(found)
