"""Server memory: model copies, buffered activations and updates that wait, in bytes over time.

Counted are the global model as devices are sent it (device side and auxiliary network), the server
side once (shared) or once per open copy and once merged, activation batches that wait, that are
kept to be used again and the one being trained on, and updates from their arrival to the end of
their merge, or to where they are added to a sum, and that sum. Optimiser state and what a job needs
only while it runs are not: the paper's formulas leave them out too. `training_memory` adds them,
from what a step keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedoptima.analysis.level import Level, LevelMeter
from fedoptima.analysis.server_state import ServerState
from fedoptima.core.events import JobDone, Received
from fedoptima.core.jobs import PlanRun
from fedoptima.core.messages import ActivationBatch
from fedoptima.core.plan import BlockProfile
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record


def memory_of_copies(model: int, activation: int, devices: int) -> int:
    """Eq. 2, OFL and OAFL: ``(K + 1) model + K activations``."""
    return (devices + 1) * model + devices * activation


def memory_of_shared(model: int, activation: int, cap: int) -> int:
    """Eq. 3, FedOptima: ``model + omega activations``."""
    return model + cap * activation


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """What a server holds while it trains, in bytes."""

    models: int  # server sides
    activations: int  # batches that wait, and those in training
    optimiser: int  # the state of every server side that is trained
    gradients: int  # of the weights, of steps in progress
    autograd: int  # what these steps keep between their forward and backward passes

    @property
    def formula(self) -> int:
        """What Eq. 2 and 3 count."""
        return self.models + self.activations

    @property
    def total(self) -> int:
        return self.formula + self.optimiser + self.gradients + self.autograd


def training_memory(
    side: Sequence[BlockProfile],
    *,
    batch: int,
    activation: int,
    waiting: int,
    copies: int = 0,
    state: int = 1,
    steps: int = 1,
) -> TrainingMemory:
    """Of a server side that is trained on ``waiting`` batches of ``activation`` bytes.

    ``copies``: devices that have a server side to themselves; 0: one for all. ``state``: tensors
    that an optimiser keeps for each weight. ``steps``: in progress at the same time; our server
    takes one after the other.
    """
    model = sum(block.parameter_bytes for block in side)
    return TrainingMemory(
        models=(copies + 1) * model,
        activations=waiting * activation,
        optimiser=max(1, copies) * state * model,
        gradients=steps * model,
        autograd=steps * batch * sum(block.saved_bytes for block in side),
    )


@dataclass(frozen=True, slots=True)
class Memory:
    total: Level  # bytes
    peak_models: int  # global model and server sides
    peak_activations: int
    peak_updates: int
    most_copies: int  # server sides that devices had to themselves, at once
    queue: Level  # activation batches waiting; parts of a batch count singly
    server_side: int  # bytes of one server side
    activation: int  # bytes of the largest batch, all parts together
    formula_copies: int  # Eq. 2 for the devices of this run; both are 0 where nothing is split
    formula_shared: int  # Eq. 3 for the longest queue of this run, which omega bounds
    peak_kept: int = 0  # of the activations: batches that were kept to be used again


class MemoryAccount:
    """Feed it every record, in order, after the server state."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._total = LevelMeter()
        self._queue = LevelMeter()
        self._peak_models = 0
        self._peak_activations = 0
        self._peak_updates = 0
        self._peak_kept = 0
        self._most_copies = 0
        self._activation = 0
        self._now = 0.0

    def observe(self, record: Record) -> None:
        state = self._state
        if record.node != SERVER or not state.running:
            return
        event = record.event
        if isinstance(event, JobDone) and isinstance(event.job, PlanRun):
            self._total.begin(record.at)
            self._queue.begin(record.at)
        elif isinstance(event, Received) and isinstance(event.message, ActivationBatch):
            batch = event.message
            self._activation = max(self._activation, batch.data.nbytes * batch.parts)
        self._now = now = record.at
        models = state.model_bytes + state.side_bytes * (1 + len(state.copies))
        activations = state.waiting_bytes + state.step_bytes + state.kept_bytes
        # One record can free what another kind takes up: each peak is looked at for itself.
        self._peak_models = max(self._peak_models, models)
        self._peak_activations = max(self._peak_activations, activations)
        self._peak_updates = max(self._peak_updates, state.update_bytes)
        self._peak_kept = max(self._peak_kept, state.kept_bytes)
        self._most_copies = max(self._most_copies, len(state.copies))
        total = models + activations + state.update_bytes
        if total != self._total.value:
            self._total.set(total, now)
        if state.waiting != self._queue.value:
            self._queue.set(state.waiting, now)

    def memory(self) -> Memory:
        """As of the last record."""
        state, queue = self._state, self._queue.level(self._now)
        side, split = state.side_bytes, state.side_bytes > 0
        devices = len(state.known)
        return Memory(
            self._total.level(self._now),
            self._peak_models,
            self._peak_activations,
            self._peak_updates,
            self._most_copies,
            queue,
            side,
            self._activation,
            memory_of_copies(side, self._activation, devices) if split else 0,
            memory_of_shared(side, self._activation, int(queue.peak)) if split else 0,
            self._peak_kept,
        )
