"""The payloads that a job works on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedoptima.core.jobs import (
    AddUp,
    Backward,
    BasedMerge,
    Job,
    LoadModel,
    Merge,
    Part,
    Rebase,
    ServerStep,
)
from fedoptima.core.types import Payload, PayloadId


def inputs_of(job: Job) -> dict[PayloadId, object]:
    """Their values."""
    match job:
        case LoadModel(data=payload) | Rebase(data=payload) | ServerStep(data=payload):
            return {payload.id: payload.value}
        case Backward(gradient=payload) | AddUp(part=Part(data=payload)):
            return {payload.id: payload.value}
        case Merge():
            found = {part.data.id: part.data.value for part in job.parts}
            bases = job.bases if isinstance(job, BasedMerge) else ()
            return found | {base.id: base.value for base in bases if base is not None}
    return {}


def with_inputs(job: Job, change: Callable[[Payload], Payload]) -> Job:
    """The same job with other payloads."""
    match job:
        case LoadModel() | Rebase() | ServerStep():
            return replace(job, data=change(job.data))
        case Backward():
            return replace(job, gradient=change(job.gradient))
        case AddUp(part):
            return AddUp(replace(part, data=change(part.data)))
        case Merge():
            parts = tuple(replace(part, data=change(part.data)) for part in job.parts)
            if isinstance(job, BasedMerge):
                bases = tuple(None if base is None else change(base) for base in job.bases)
                return replace(job, parts=parts, bases=bases)
            return replace(job, parts=parts)
    return job
