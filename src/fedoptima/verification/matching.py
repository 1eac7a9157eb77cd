"""What one side records as sent or ordered must be what the other side records as received.

Jobs: each one ordered is answered once, by its ticket, before the next; its result bears its name.
Mail: in each session, direction and class (bulk, or all that overtakes it) the messages received
are the first ones sent, in order. The two sides' records need not be interleaved by true time: the
clocks of a real run agree only roughly.

More may be received than was recorded as sent only where records are known to be lost: the last
ones of a device's incarnation, and those of a server between its last checkpoint and its death. Of
those that a gap stands for it says how many messages there were: those fit any.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from fedoptima.core.effects import Halt, Run, Send
from fedoptima.core.events import (
    Connected,
    Disconnected,
    FailedLate,
    Gap,
    JobDone,
    JobFailed,
    Received,
    Restarted,
)
from fedoptima.core.messages import Join, Message, is_bulk
from fedoptima.core.types import SERVER, NodeId, PayloadId, payload_id
from fedoptima.trace.record import Record
from fedoptima.verification.difference import NOTHING, Difference, first_difference, shown


class JobMatching:
    def __init__(self) -> None:
        self._running: dict[NodeId, Run] = {}
        self._incarnation: dict[NodeId, int] = {}
        self._unknown: set[NodeId] = set()  # after a gap that does not say what was running

    def observe(self, number: int, record: Record, join: Join | None) -> Difference | None:
        node, event = record.node, record.event
        if join is not None:  # what its last incarnation was doing is never answered
            self._incarnation[node] = join.incarnation
            self._running.pop(node, None)
        if isinstance(event, Gap):
            self._running.pop(node, None)
            self._unknown.discard(node)
            if event.running is not None:
                self._running[node] = event.running
            elif not event.core:
                self._unknown.add(node)
        difference = None
        if isinstance(event, JobDone | JobFailed) and node not in self._unknown:
            ordered = self._running.pop(node, NOTHING)
            answered = Run(event.ticket, event.job)
            difference = first_difference(number, record, "the job answered", ordered, answered)
            if difference is None and isinstance(event, JobDone):
                difference = self._named_after(number, record, event)
        for effect in record.effects:
            if isinstance(effect, Run) and difference is None and node not in self._unknown:
                unanswered = self._running.get(node, NOTHING)
                difference = first_difference(
                    number, record, "the job running", NOTHING, unanswered
                )
                self._running[node] = effect
        return difference

    def _named_after(self, number: int, record: Record, event: JobDone) -> Difference | None:
        node, incarnation = record.node, self._incarnation.get(record.node, 0)
        if node == SERVER:  # one resumed from a checkpoint has a higher number
            incarnation = max(incarnation, incarnation_of(event.result.id))
            self._incarnation[node] = incarnation
        expected = payload_id(node, incarnation, event.ticket)
        return first_difference(number, record, "the result's id", expected, event.result.id)


class Incarnations:
    """Where one incarnation of a device ends in its records and the next begins.

    A device's process starts with a connection and joins with the number of its incarnation: the
    first record with another number is the first of a new one. Jobs that the old one left open
    are never answered.
    """

    def __init__(self) -> None:
        self._current: dict[NodeId, int] = {}

    def begun_by(self, record: Record) -> Join | None:
        """The device's Join, if ``record`` is the first of an incarnation."""
        if record.node == SERVER or not isinstance(record.event, Connected):
            return None
        for effect in record.effects:
            if isinstance(effect, Send) and isinstance(effect.message, Join):
                join = effect.message
                if self._current.get(record.node) != join.incarnation:
                    self._current[record.node] = join.incarnation
                    return join
        return None


def incarnation_of(result: PayloadId) -> int:
    """The incarnation of the node whose job made this; -1 if the id is not of that form."""
    _, _, tail = result.rpartition("/")[0].rpartition("/")
    return int(tail) if tail.isdecimal() else -1


class _Seen(NamedTuple):
    number: int
    record: Record
    message: Message | None  # None: in a gap, and any


@dataclass(slots=True)
class _Lane:
    """What one side has recorded and the other has not yet."""

    sent: deque[Message | None] = field(default_factory=deque)
    received: deque[_Seen] = field(default_factory=deque)


class _LaneKey(NamedTuple):
    device: NodeId
    session: int
    upward: bool
    bulk: bool


class MailMatching:
    def __init__(self) -> None:
        self._lanes: dict[_LaneKey, _Lane] = {}
        self._server = _ServerSide()
        self._devices: dict[NodeId, _DeviceSide] = {}

    def observe(self, number: int, record: Record, join: Join | None) -> Difference | None:
        node, event = record.node, record.event
        if isinstance(event, Gap):
            return self._skip(number, record, event)
        if node == SERVER:
            self._server.observe(record)
        else:
            self._devices.setdefault(node, _DeviceSide()).observe(record, restarted=bool(join))
        difference = None
        if isinstance(event, Received):
            upward = node == SERVER
            device = event.sender if upward else node
            lane = self._lane(device, event.session, upward, event.message)
            lane.received.append(_Seen(number, record, event.message))
            difference = _settle(lane)
        for effect in record.effects:
            if isinstance(effect, Send):
                upward = effect.to == SERVER
                device = node if upward else effect.to
                if not upward and self._server.is_over(device, effect.session):
                    continue
                lane = self._lane(device, effect.session, upward, effect.message)
                if isinstance(event, FailedLate):  # in place of what is still on its way
                    lane.sent.clear()
                lane.sent.append(effect.message)
                difference = difference or _settle(lane)
        return difference

    def _skip(self, number: int, record: Record, gap: Gap) -> Difference | None:
        """The messages that the server's missing records had, whatever they were."""
        difference = None
        for (device, session, upward, bulk), count in gap.mail:
            lane = self._lanes.setdefault(_LaneKey(device, session, upward, bulk), _Lane())
            if upward:
                lane.received.extend([_Seen(number, record, None)] * count)
            else:
                lane.sent.extend([None] * count)
            while difference is None and lane.sent and lane.received:
                difference = _settle(lane)
        return difference

    def finish(self) -> Difference | None:
        """After the last record: was anything received that was never sent?"""
        unsent = [
            lane.received[0]
            for key, lane in self._lanes.items()
            if lane.received and not self._may_be_lost(key)
        ]
        if not unsent:
            return None
        first = min(unsent, key=lambda seen: seen.number)
        return Difference(first.number, first.record, "received", NOTHING, shown(first.message))

    def _lane(self, device: NodeId, session: int, upward: bool, message: Message) -> _Lane:
        key = _LaneKey(device, session, upward, is_bulk(message))
        return self._lanes.setdefault(key, _Lane())

    def _may_be_lost(self, key: _LaneKey) -> bool:
        if not key.upward:
            return self._server.may_have_lost(key.device, key.session)
        device = self._devices.get(key.device)
        return device is None or device.may_have_lost(key.session)


def _settle(lane: _Lane) -> Difference | None:
    if not (lane.sent and lane.received):
        return None
    sent, (number, record, message) = lane.sent.popleft(), lane.received.popleft()
    if sent is None or message is None:
        return None
    return first_difference(number, record, "received", sent, message)


class _DeviceSide:
    """A device's sessions as it recorded them. One that was killed has lost its last records."""

    def __init__(self) -> None:
        self._sessions: list[tuple[int, bool]] = []  # and whether an incarnation began with it
        self._ended: set[int] = set()  # sessions of which the device has recorded the end

    def observe(self, record: Record, *, restarted: bool) -> None:
        match record.event:
            case Connected(_, session):
                if self._sessions and not restarted:
                    self._ended.add(self._sessions[-1][0])
                self._sessions.append((session, restarted))
            case Disconnected(_, session):
                self._ended.add(session)
        if self._sessions and any(isinstance(effect, Halt) for effect in record.effects):
            self._ended.add(self._sessions[-1][0])

    def may_have_lost(self, session: int) -> bool:
        if any(session == known for known, _ in self._sessions):
            return session not in self._ended
        later = (restarted for known, restarted in self._sessions if known > session)
        return next(later, True)


class _ServerSide:
    """A server that went on from a checkpoint has forgotten what it did after it.

    It begins by saying so and by ending the sessions it knew. In older records it
    does not say so: there the new incarnation in its next result is the sign.
    """

    def __init__(self) -> None:
        self._incarnation = 0
        self._restarts = 0
        self._restarted = self._halted = False
        self._known: set[tuple[NodeId, int]] = set()
        self._open: set[tuple[NodeId, int]] = set()
        self._ended_since_result: set[tuple[NodeId, int]] = set()
        self._cut_short: set[tuple[NodeId, int]] = set()

    def observe(self, record: Record) -> None:
        match record.event:
            case Connected(device, session):
                self._known.add((device, session))
                self._open.add((device, session))
            case Restarted():
                self._restarts += 1
                self._restarted = True
                self._cut_short |= self._open
                self._open.clear()
            case Disconnected(device, session):
                self._open.discard((device, session))
                self._ended_since_result.add((device, session))
            case JobDone(result=result):
                if incarnation_of(result.id) > self._incarnation:
                    self._incarnation = incarnation_of(result.id)
                    self._restarts += 1
                    self._cut_short |= self._ended_since_result
                self._ended_since_result.clear()
        self._halted = self._halted or any(isinstance(effect, Halt) for effect in record.effects)

    def is_over(self, device: NodeId, session: int) -> bool:
        """It ended with the process that had it: what a restarted server orders for it, until it
        has taken leave of all that it knew, is never sent."""
        return self._restarted and (device, session) not in self._open

    def may_have_lost(self, device: NodeId, session: int) -> bool:
        if not self._halted:
            return True
        unknown = (device, session) not in self._known
        return (device, session) in self._cut_short or (unknown and self._restarts > 0)
