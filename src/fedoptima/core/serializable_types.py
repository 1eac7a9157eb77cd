"""Every class that may appear in a trace or a snapshot, known to `serialization` by name."""

from __future__ import annotations

from types import ModuleType

from fedoptima.core import (
    aggregation,
    barrier,
    cuts,
    device,
    distribution,
    effects,
    events,
    flow,
    influence,
    job_slot,
    jobs,
    membership,
    messages,
    method,
    model_age,
    programs,
    progress,
    reuse,
    scheduler,
    serialization,
    server,
    settings,
    shares,
    staleness,
    stopping,
    training,
)

_MODULES = (
    *(messages, jobs, events, effects),
    *(server, settings, training, distribution, model_age, job_slot, device, programs, method),
    *(membership, shares, influence, progress, stopping, staleness),
    *(aggregation, barrier, cuts, scheduler, flow, reuse),
)


def _classes(module: ModuleType) -> list[type]:
    """What the module itself defines; a protocol is never an object's class."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and not getattr(value, "_is_protocol", False)
    ]


for _module in _MODULES:
    serialization.register(*_classes(_module))
