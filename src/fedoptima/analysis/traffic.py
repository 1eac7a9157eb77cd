"""Bytes that passed the server, by direction and by what they carried."""

from __future__ import annotations

from dataclasses import dataclass

from fedoptima.core.effects import Send
from fedoptima.core.events import Received
from fedoptima.core.messages import (
    ActivationBatch,
    GlobalModel,
    GradientBatch,
    Message,
    ModelUpdate,
    nbytes,
)
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record


@dataclass(frozen=True, slots=True)
class Volume:
    activations: int
    gradients: int
    models: int
    control: int  # everything else

    @property
    def total(self) -> int:
        return self.activations + self.gradients + self.models + self.control


@dataclass(frozen=True, slots=True)
class Traffic:
    up: Volume  # arrived at the server
    down: Volume  # sent by it


_KINDS: dict[type, str] = {
    ActivationBatch: "activations",
    GradientBatch: "gradients",
    ModelUpdate: "models",
    GlobalModel: "models",
}


class TrafficAccount:
    """Feed it every record, in order. Joining and planning count: they are traffic, too."""

    def __init__(self) -> None:
        self._up = {"activations": 0, "gradients": 0, "models": 0, "control": 0}
        self._down = dict(self._up)

    def observe(self, record: Record) -> None:
        if record.node != SERVER:
            return
        if isinstance(record.event, Received):
            _count(self._up, record.event.message)
        for effect in record.effects:
            if isinstance(effect, Send):
                _count(self._down, effect.message)

    def traffic(self) -> Traffic:
        return Traffic(Volume(**self._up), Volume(**self._down))


def _count(volume: dict[str, int], message: Message) -> None:
    volume[_KINDS.get(type(message), "control")] += nbytes(message)
