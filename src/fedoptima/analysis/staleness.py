"""How old what the server used was: updates in versions, activation batches in seconds.

An update's staleness is the version it is merged into minus the version it began with (t - t_k).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from fedoptima.analysis.server_state import ServerState
from fedoptima.core.effects import Note, NoteKind, Run
from fedoptima.core.jobs import Merge, ReusedStep, ServerStep
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record


@dataclass(frozen=True, slots=True)
class DeviceStaleness:
    merged: int  # updates
    refused: int
    mean: float  # of those merged; 0 where there are none
    max: int
    histogram: tuple[int, ...]  # merged at staleness 0, 1, 2-3, 4-7, 8-15, ...


@dataclass(frozen=True, slots=True)
class Staleness:
    merged: int
    refused: int
    mean: float
    max: int
    devices: Mapping[NodeId, DeviceStaleness]  # those that had an update merged or refused
    activation_age_mean: float  # seconds from a batch's arrival to its use
    activation_age_max: float
    # Batches used within 1 ms of their arrival, then those that took up to 2, 4, 8 ... ms.
    activation_ages: tuple[int, ...] = ()


def _count(bins: list[int], value: int) -> None:
    """In bins by powers of two: 0, 1, 2-3, 4-7 ... so few of them, whatever the values."""
    place = value.bit_length()
    bins += [0] * (place + 1 - len(bins))
    bins[place] += 1


class StalenessTally:
    def __init__(self) -> None:
        self.merged = 0
        self.refused = 0
        self.total = 0
        self.worst = 0
        self.bins: list[int] = []

    def add(self, staleness: int) -> None:
        self.merged += 1
        self.total += staleness
        self.worst = max(self.worst, staleness)
        _count(self.bins, staleness)

    def result(self) -> DeviceStaleness:
        mean = self.total / self.merged if self.merged else 0.0
        return DeviceStaleness(self.merged, self.refused, mean, self.worst, tuple(self.bins))


class StalenessAccount:
    """Feed it every record, in order, after the server state."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._devices: defaultdict[NodeId, StalenessTally] = defaultdict(StalenessTally)
        self._batches = 0
        self._age = 0.0
        self._oldest = 0.0
        self._ages: list[int] = []

    def observe(self, record: Record) -> None:
        if record.node != SERVER:
            return
        for effect in record.effects:
            if isinstance(effect, Run):
                if isinstance(effect.job, ServerStep) and not isinstance(effect.job, ReusedStep):
                    age = self._state.step_age
                    self._batches += 1
                    self._age += age
                    self._oldest = max(self._oldest, age)
                    _count(self._ages, int(1000 * age))
                elif isinstance(effect.job, Merge):
                    self._merge(effect.job)
            elif isinstance(effect, Note) and effect.kind == NoteKind.UPDATE_REFUSED:
                self._devices[effect.about].refused += 1

    def _merge(self, merge: Merge) -> None:
        state = self._state
        for part in merge.parts:
            update = state.merging.get(part.data.id)
            if update is not None:  # it may have come when records are missing
                self._devices[part.device].add(state.version - update.version)

    def staleness(self) -> Staleness:
        tallies = self._devices.values()
        merged = sum(tally.merged for tally in tallies)
        return Staleness(
            merged,
            sum(tally.refused for tally in tallies),
            sum(tally.total for tally in tallies) / merged if merged else 0.0,
            max((tally.worst for tally in tallies), default=0),
            {device: tally.result() for device, tally in sorted(self._devices.items())},
            self._age / self._batches if self._batches else 0.0,
            self._oldest,
            tuple(self._ages),
        )
