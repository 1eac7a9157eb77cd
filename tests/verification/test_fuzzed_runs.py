"""Runs in which processes are killed and connections break, at any moment: their records replay.

A server that is restored from a checkpoint has lost the records after it; a device that loses its
power has lost its last ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from fedoptima.core.effects import Effect
from fedoptima.core.events import Connected, Event
from fedoptima.core.types import SERVER, NodeId
from fedoptima.fuzzing.campaign import find_methods
from fedoptima.fuzzing.nodes import Checkpoint, DeviceProcess, new_core
from fedoptima.fuzzing.script import Fault, Kind, Script, draw
from fedoptima.fuzzing.world import World
from fedoptima.named_code import NO_CODE
from fedoptima.trace.record import Record
from fedoptima.verification.core_replay import replay_trace

METHODS = find_methods([], NO_CODE)
SEEDS = 80
OF_A_PROCESS = 1000  # session numbers


class RecordedWorld(World):
    """Numbers processes and sessions as the runtime does: none is ever used twice."""

    def __init__(self, script: Script) -> None:
        self.records: list[Record] = []
        self._marks: list[tuple[Checkpoint, int]] = []  # with the server's records until then
        self._run = self._processes = 0
        self._losses = random.Random(script.seed)
        super().__init__(script, self._record)

    def _record(self, at: float, node: NodeId, what: object, effects: list[Effect]) -> None:
        if isinstance(what, Fault):
            return
        if self.server.run != self._run:  # there was no checkpoint: it began anew
            self._run = self.server.run
            self.records.clear()
        if node == SERVER:
            self._mark()
        elif self.devices[node].run != self.server.run:  # it has not heard that the run began anew
            return
        event: Event = what  # type: ignore[assignment]
        self.records.append(Record(at, node, event, list(effects)))

    def _mark(self) -> None:
        """A checkpoint is made after an event of the server's, and noticed before the next one."""
        marked = [checkpoint for checkpoint, _ in self._marks]
        for made in self.server.checkpoints:
            if not any(made is checkpoint for checkpoint in marked):
                self._marks.append((made, sum(record.node == SERVER for record in self.records)))

    def _restore(self, died: float, damaged: bool) -> None:
        self._mark()
        self._processes += 1
        super()._restore(died, damaged)

    def _resume(self, found: Checkpoint) -> None:
        self._cut_back(found)
        server, first = self.server, self._processes * OF_A_PROCESS
        server.incarnation = self._processes
        server.given = {name: max(server.given.get(name, 0), first) for name in self.devices}
        super()._resume(found)

    def _cut_back(self, found: Checkpoint) -> None:
        kept = next(count for checkpoint, count in self._marks if checkpoint is found)
        own = [record for record in self.records if record.node == SERVER][:kept]
        lost = {id(record) for record in self.records if record.node == SERVER}
        lost -= {id(record) for record in own}
        self.records = [record for record in self.records if id(record) not in lost]

    def _end_process(self, device: DeviceProcess, unnoticed: float) -> None:
        own = [i for i, record in enumerate(self.records) if record.node == device.name]
        for place in reversed(own[len(own) - self._losses.choice((0, 0, 1, 3, 8)) :]):
            if isinstance(self.records[place].event, Connected):
                break
            del self.records[place]
        super()._end_process(device, unnoticed)


def played(seed: int) -> tuple[Script, list[Record]]:
    """Messages do not come twice over a real connection."""
    script = draw(seed, METHODS)
    faults = tuple(fault for fault in script.faults if fault.kind is not Kind.ECHO)
    world = RecordedWorld(replace(script, faults=faults))
    world.run()
    return script, world.records


def check(script: Script, records: Iterable[Record]) -> None:
    verdict = replay_trace(records, lambda: new_core(script))
    assert verdict.difference is None, f"seed {script.seed}: {verdict.difference}"


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_whatever_happened_its_records_replay(first: int) -> None:
    for seed in range(first, first + 20):
        script, records = played(seed)
        check(script, records)
        check(script, records[: len(records) // 2])


def test_a_restored_server_gives_a_turn_to_a_device_that_it_has_lost_as_well() -> None:
    check(*played(127))
