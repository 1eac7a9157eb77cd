"""Bugs in devices."""

from __future__ import annotations

from typing import Any

from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Effect
from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.messages import ActivationBatch, ModelUpdate
from fedoptima.core.programs import ServerGradient
from fedoptima.core.scheduler import FifoScheduler
from fedoptima.core.types import NodeId
from tests.fuzzing.mutants.planting import Patches, mutant, unchecked


@mutant
def samples_of_an_abandoned_round_count() -> Patches:
    abandon = DeviceCore._abandon

    def keep(self: DeviceCore) -> None:
        trained = self._trained
        abandon(self)
        self._trained = trained

    yield DeviceCore, "_abandon", keep


@mutant
def the_sender_stays_on_without_a_connection() -> Patches:
    disconnect = DeviceCore._disconnect

    def keep(self: DeviceCore) -> list[Effect]:
        on = self._sender_on
        effects = disconnect(self)
        self._sender_on = on
        return effects

    yield DeviceCore, "_disconnect", keep
    yield DeviceCore, "check", unchecked


@mutant
def an_abandoned_step_is_trained_again() -> Patches:
    abandon = DeviceCore._abandon

    def repeat(self: DeviceCore) -> None:
        step = self.step
        abandon(self)
        if self._program is not None:
            self._program.step = step

    yield DeviceCore, "_abandon", repeat
    yield ServerGradient, "gradient", _any_gradient


def _any_gradient(self: ServerGradient, message: Any) -> Any:
    if self._answered == self._sent:
        raise ProtocolViolation("unexpected gradient")
    self._answered += 1
    self._gradients.append(message)
    return self._next()


@mutant
def a_batch_is_sent_twice() -> Patches:
    put = FifoScheduler.put

    def twice(
        self: FifoScheduler, origin: NodeId, item: ActivationBatch | ModelUpdate, cost: float = 1
    ) -> None:
        put(self, origin, item, cost)
        if isinstance(item, ActivationBatch) and item.seq % 5 == 4:
            put(self, origin, item, cost)

    yield FifoScheduler, "put", twice
