"""The proof that a run was the cores' doing: recorded events, fed into fresh cores, have to give
the recorded effects, payload ids included; and what one node sent or ordered has to be what
another received or an engine answered.

Works on the records of any run, simulated or real, and on any prefix of one. A device that was
killed may have lost its last records: that is no difference. Over a gap, where records could not be
written, nothing can be said; after it the server is the one that the gap holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Effect
from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.events import DriverEvent, Event, Gap, Received, Rejected
from fedoptima.core.machine import (
    Machine,
    broke_the_protocol,
)
from fedoptima.core.messages import Join
from fedoptima.core.serialization import thaw
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import UNREADABLE, Record
from fedoptima.verification.difference import NOTHING, Difference, first_difference
from fedoptima.verification.matching import Incarnations, JobMatching, MailMatching

ServerFactory = Callable[[], Machine]
DeviceFactory = Callable[[Join], Machine]


@dataclass(frozen=True)
class MissingRecords:
    """A gap that the server left in its trace."""

    number: int  # of the record that stands for it
    records: int
    since: float
    until: float
    verified_after: bool  # otherwise the server's records after it are not

    def __str__(self) -> str:
        then = (
            "the server is verified up to there, and from the checkpoint after them on"
            if self.verified_after
            else "the server is verified up to there"
        )
        return (
            f"{self.records} records from {self.since:.1f} to {self.until:.1f} s could not be "
            f"written when the run was made: {then}"
        )


@dataclass(frozen=True)
class Verdict:
    records: int  # looked at: all, or up to the first difference
    nodes: Mapping[NodeId, int]  # records of each
    difference: Difference | None
    gaps: Sequence[MissingRecords] = ()


def device_as_introduced(join: Join) -> DeviceCore:
    """A device at the start of the incarnation that joins with ``join``."""
    return DeviceCore(
        samples=join.samples,
        flops_per_second=join.flops_per_second,
        bytes_per_second=join.bytes_per_second,
        incarnation=join.incarnation,
        step=join.step,
    )


def replay_trace(
    records: Iterable[Record], server: ServerFactory, device: DeviceFactory = device_as_introduced
) -> Verdict:
    """``records``: each node's in order; how the nodes' are interleaved does not matter."""
    incarnations, cores = Incarnations(), _Cores(server, device)
    jobs, mail = JobMatching(), MailMatching()
    nodes: dict[NodeId, int] = {}
    gaps: list[MissingRecords] = []
    number = 0
    for number, record in enumerate(records, start=1):
        nodes[record.node] = nodes.get(record.node, 0) + 1
        if isinstance(record.event, Gap):
            gaps.append(_missing(number, record, record.event))
        join = incarnations.begun_by(record)
        difference = (
            cores.feed(number, record, join)
            or jobs.observe(number, record, join)
            or mail.observe(number, record, join)
        )
        if difference is not None:
            return Verdict(number, nodes, difference, gaps)
    return Verdict(number, nodes, mail.finish(), gaps)


def _missing(number: int, record: Record, gap: Gap) -> MissingRecords:
    return MissingRecords(number, gap.records, gap.since, record.at, bool(gap.core))


class _Cores:
    def __init__(self, server: ServerFactory, device: DeviceFactory) -> None:
        self._server = server
        self._device = device
        self._machines: dict[NodeId, Machine] = {}
        self._unknown: set[NodeId] = set()  # nodes after a gap that does not say how they are

    def feed(self, number: int, record: Record, join: Join | None) -> Difference | None:
        node, event = record.node, record.event
        if isinstance(event, Gap):
            self._machines.pop(node, None)
            self._unknown.discard(node)
            if not event.core:
                self._unknown.add(node)
                return None
            try:
                self._machines[node] = cast(Machine, thaw(json.loads(event.core)))
            except UNREADABLE as error:
                return Difference(number, record, "the gap", "a core", repr(error))
        if isinstance(event, DriverEvent) or node in self._unknown:
            return None
        if join is not None:
            self._machines[node] = self._device(join)
        elif node == SERVER and node not in self._machines:
            self._machines[node] = self._server()
        if node not in self._machines:
            return Difference(
                number, record, "the first record of a device", "a Join", repr(record.event)
            )
        try:
            got = _answer(self._machines[node], event, record.at)
        except Exception as error:  # whatever it is, the recorded core did not raise it
            return Difference(number, record, "the core", "an answer", repr(error))
        return _compare(number, record, got)


def _answer(machine: Machine, event: Event, at: float) -> list[Effect]:
    try:
        return machine.handle(event, at)
    except ProtocolViolation as error:  # drivers record it as a note and drop the peer
        if not isinstance(event, Received | Rejected):
            raise
        return [broke_the_protocol(event.sender, error)]


def _compare(number: int, record: Record, got: list[Effect]) -> Difference | None:
    expected = record.effects
    for index in range(max(len(expected), len(got))):
        ours = expected[index] if index < len(expected) else NOTHING
        theirs = got[index] if index < len(got) else NOTHING
        name = type(theirs if ours is NOTHING else ours).__name__
        difference = first_difference(number, record, f"effect {index + 1}, {name}", ours, theirs)
        if difference is not None:
            return difference
    return None
