"""A run of three uneven devices with absences, made by the simulator with toy engines."""

from __future__ import annotations

from collections.abc import Sequence

from fedoptima.trace.record import Record
from tests.verification.traces import trace_of

METHODS = ("fedoptima", "fl", "splitfed")


def story(method: str = "fedoptima") -> Sequence[Record]:
    return trace_of(method)
