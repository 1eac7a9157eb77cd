"""Bugs in sessions and membership."""

from __future__ import annotations

from typing import Any

from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Effect
from fedoptima.core.membership import Roster
from fedoptima.core.scheduler import FifoScheduler
from fedoptima.core.server import ServerCore
from fedoptima.core.types import NodeId
from tests.fuzzing.mutants.planting import Patches, mutant, unchecked


@mutant
def session_numbers_are_not_looked_at() -> Patches:
    yield Roster, "is_current", lambda self, device, session: device in self.sessions


@mutant
def a_device_takes_messages_of_any_session() -> Patches:
    handle = DeviceCore.handle

    def gullible(self: DeviceCore, event: Any, now: float) -> list[Effect]:
        if hasattr(event, "session") and hasattr(event, "message") and self._session is not None:
            event = type(event)(event.sender, self._session, event.message)
        return handle(self, event, now)

    yield DeviceCore, "handle", gullible


@mutant
def an_update_that_was_used_is_asked_for_again() -> Patches:
    yield Roster, "has_settled", lambda self, device, update: False


@mutant
def a_restored_server_forgets_what_it_has_merged() -> Patches:
    wait = ServerCore._wait_for_all

    def forget(self: ServerCore) -> list[Effect]:
        self._roster._settled.clear()
        return wait(self)

    yield ServerCore, "_wait_for_all", forget


@mutant
def batches_of_a_device_that_left_stay_in_the_queue() -> Patches:
    def leave(self: FifoScheduler, device: NodeId) -> int:
        self._models.pop(device, None)
        return 0

    yield FifoScheduler, "leave", leave
    yield FifoScheduler, "check", unchecked
