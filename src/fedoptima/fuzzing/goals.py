"""No starvation: once nothing goes wrong any more, everybody takes part again."""

from __future__ import annotations

from fedoptima.core.types import NodeId
from fedoptima.fuzzing.script import Script
from fedoptima.testing.books import Books

_MANY = 100  # merges: no device of these fleets is that far behind
_PLENTY = 30.0  # seconds of credit: then no batch of these fleets comes too late


class Goals:
    def __init__(self, script: Script, books: Books) -> None:
        method = script.make_method()
        policy, flow = method.aggregation(), method.flow()
        self._devices = [device.name for device in script.devices]
        self._books = books
        # A device may for ever be too slow for a small maximum delay, or for a barrier that does
        # not wait; then it is answered only.
        delay = getattr(policy, "delay", None)
        strict = delay is not None and not delay.while_away and delay.merges < _MANY
        self._merged = not strict and getattr(policy, "timeout", None) is None
        # And a small credit may always expire before its batch comes.
        self._served = flow.cap is not None and (flow.timeout is None or flow.timeout >= _PLENTY)
        books.count_anew()

    def reached(self) -> bool:
        return not any(self._lacks(device) for device in self._devices)

    def _lacks(self, device: NodeId) -> str:
        books = self._books
        if device not in books.models:
            return "was sent no model"
        if self._merged and device not in books.merges:
            return "was never merged"
        if self._served and device not in books.steps:
            return "had no batch trained on"
        return ""

    def missing(self) -> str:
        found = {device: lack for device in self._devices if (lack := self._lacks(device))}
        return "since nothing goes wrong any more, " + ", ".join(
            f"{device} {lack}" for device, lack in found.items()
        )
