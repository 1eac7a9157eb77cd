"""Messages on their way: from one side's `Send` to the other side's `Received`.

In each session, direction and class (bulk, or all that overtakes it) messages arrive in the order
sent; what was sent before one that has arrived, and has not arrived itself, was lost. The two sides
of a real run have clocks that agree only roughly, so a receipt may be recorded before its sending:
such a transfer has no length, never a negative one.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from fedoptima.core.effects import Send
from fedoptima.core.events import Disconnected, Received
from fedoptima.core.messages import Message, is_bulk
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record

_MOST_EARLY = 64  # receipts that wait for their sending: more than clocks can differ by


class Transfer(NamedTuple):
    sender: NodeId
    receiver: NodeId
    message: Message
    sent: float
    received: float


_Mail = deque[tuple[float, Message]]


class _Lane:
    def __init__(self) -> None:
        self.sent: _Mail = deque()
        self.early: _Mail = deque(maxlen=_MOST_EARLY)  # received, and not known to be sent yet


class _Session:
    def __init__(self, number: int) -> None:
        self.number = number
        self.over = False
        self.lanes: dict[tuple[bool, bool], _Lane] = {}  # (to the server, bulk)

    def lane(self, upward: bool, message: Message) -> _Lane:
        key = (upward, is_bulk(message))
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = _Lane()
        return lane


class TransferAccount:
    """Feed it every record, in order; it keeps what is in flight."""

    def __init__(self) -> None:
        self._sessions: dict[NodeId, _Session] = {}  # each device's latest

    def observe(self, record: Record) -> list[Transfer]:
        """What has arrived."""
        arrived: list[Transfer] = []
        node, event, now = record.node, record.event, record.at
        if isinstance(event, Received):
            self._received(node, event, now, arrived)
        elif isinstance(event, Disconnected) and node == SERVER:
            self._end(event.peer, event.session)
        for effect in record.effects:
            if isinstance(effect, Send):
                self._sent(node, effect, now, arrived)
        return arrived

    def in_flight(self, now: float) -> list[Transfer]:
        return [
            Transfer(device, SERVER, message, sent, now)
            if upward
            else Transfer(SERVER, device, message, sent, now)
            for device, session in self._sessions.items()
            for (upward, _), lane in session.lanes.items()
            for sent, message in lane.sent
        ]

    def _received(self, node: NodeId, event: Received, now: float, arrived: list[Transfer]) -> None:
        upward = node == SERVER
        session = self._session(event.sender if upward else node, event.session)
        if session is None:
            return
        lane = session.lane(upward, event.message)
        sent = _take(lane.sent, event.message)
        if sent is None:
            lane.early.append((now, event.message))
        else:
            arrived.append(Transfer(event.sender, node, event.message, sent, now))

    def _sent(self, node: NodeId, send: Send, now: float, arrived: list[Transfer]) -> None:
        upward = send.to == SERVER
        session = self._session(node if upward else send.to, send.session)
        if session is None:
            return
        lane = session.lane(upward, send.message)
        received = _take(lane.early, send.message) if lane.early else None
        if received is None:
            lane.sent.append((now, send.message))
        else:
            arrived.append(Transfer(node, send.to, send.message, received, received))

    def _session(self, device: NodeId, number: int) -> _Session | None:
        """None: it is over, and what is sent in it will not arrive."""
        session = self._sessions.get(device)
        if session is None or number > session.number:
            session = self._sessions[device] = _Session(number)
        return None if session.over or number < session.number else session

    def _end(self, device: NodeId, number: int) -> None:
        session = self._session(device, number)
        if session is not None:
            session.over = True
            session.lanes.clear()


def _take(mail: _Mail, message: Message) -> float | None:
    """When it was put there; what lies before it is thrown away."""
    for place, (at, found) in enumerate(mail):
        if found == message:
            for _ in range(place + 1):
                mail.popleft()
            return at
    return None
