"""Who is let in: once for a whole run, however many processes devices connect to."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Protocol

import grpc

from fedoptima.core.types import NodeId
from fedoptima.runtime.server.allowance import Allowance
from fedoptima.runtime.server.server_node import ServerNode
from fedoptima.runtime.server.session import Refusal
from fedoptima.runtime.timeouts import DEFAULT, Timeouts

_ARRIVALS_AT_ONCE: Final = 100  # sessions of one device
_ARRIVALS_PER_SECOND: Final = 1.0


@dataclass(frozen=True, slots=True)
class Visitor:
    """A device that has introduced itself, and is who it says it is."""

    device: NodeId
    process: str
    last_session: int
    peer: str  # its address, for the log


@dataclass(frozen=True, slots=True)
class Admitted:
    run: str
    session: int  # its number
    records: int  # of the device's own, that the server has


class Refused(Exception):
    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.refusal = Refusal(code, text)


class Reception(Protocol):
    closing: bool  # nobody is let in any more: the run is over

    async def admit(self, visitor: Visitor) -> Admitted:
        """Raises Refused. The session that is admitted is to be opened at once."""


class NodeReception:
    """In the server's own process."""

    def __init__(self, node: ServerNode, timeouts: Timeouts = DEFAULT) -> None:
        self.closing = False
        self._node = node
        self._timeouts = timeouts
        self._arrivals: dict[NodeId, Allowance] = {}

    async def admit(self, visitor: Visitor) -> Admitted:
        device = visitor.device
        self._refuse_too_often(device)
        self._refuse_dropped(visitor)
        await self._make_room(visitor)
        self._refuse_at_the_end()
        return Admitted(
            self._node.run,
            self._node.next_session(device, visitor.last_session),
            self._node.records.taken(device),
        )

    def _refuse_too_often(self, device: NodeId) -> None:
        """Each time it joins it is sent a model: that must not keep the server from the others."""
        arrivals = self._arrivals.setdefault(
            device, Allowance(per_second=_ARRIVALS_PER_SECOND, burst=_ARRIVALS_AT_ONCE)
        )
        if not arrivals.take(1, time.monotonic()):
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"{device} connects too often; come later")

    def _refuse_dropped(self, visitor: Visitor) -> None:
        """gRPC may lose a stream's last words: a write that fails at that moment has the device see
        an internal error in their place, and come again. It is told once more."""
        process, reason = self._node.dropped.get(visitor.device, (None, ""))
        if visitor.process and process == visitor.process:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, reason)

    def _refuse_at_the_end(self) -> None:
        outcome = self._node.outcome
        if outcome.cancelled() or (outcome.done() and outcome.exception() is not None):
            # It may be resumed: the device is to come again.
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the server is breaking down")
        if self.closing or outcome.done():
            raise Refused(grpc.StatusCode.NOT_FOUND, "the run is over")

    async def _make_room(self, visitor: Visitor) -> None:
        """A connection that died unnoticed is replaced; one whose device answers is not."""
        device = visitor.device
        while (old := self._node.sessions.get(device)) is not None:
            same_process = old.process == visitor.process
            if not same_process and await old.answers(
                self._node.clock(), self._timeouts.ping_answer
            ):
                raise Refused(
                    grpc.StatusCode.ALREADY_EXISTS,
                    f"{device!r} is connected already, from {old.peer}, and answers: give this "
                    "device another name, or stop the other one",
                )
            self._node.log.info(
                "%s is back from %s: its old connection is given up", device, visitor.peer
            )
            old.end()
            self._node.closed(old, "replaced")
