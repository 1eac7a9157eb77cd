"""The server of a run that is over: it tells the devices that come, so that they come no more.

A device that was away when its run ended keeps looking for its server, which cannot know how many
of them there are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import grpc

from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.messages import Message
from fedoptima.core.types import NodeId
from fedoptima.runtime.address import Address
from fedoptima.runtime.security.access_lists import AccessLists
from fedoptima.runtime.security.tls import ServerTLS
from fedoptima.runtime.server.reception import Admitted, Refused, Visitor
from fedoptima.runtime.server.server_node import Checked
from fedoptima.runtime.server.session import Session
from fedoptima.runtime.server.streams import ServerStreams
from fedoptima.runtime.timeouts import DEFAULT, Timeouts

LOG = logging.getLogger("fedoptima.server")
_INTERVAL = 0.2  # seconds between two checks whether to stop
_MOST_NAMES = 10_000  # without certificates anybody can come, under any number of names


class FinishedRun:
    """Lets nobody in, so none of what a session needs is ever called."""

    def __init__(self, reason: str) -> None:
        self.log = LOG
        self.clock: Callable[[], float] = time.monotonic
        self.closing = True
        self._reason = reason
        self._told: set[NodeId] = set()

    async def admit(self, visitor: Visitor) -> Admitted:
        # One that stays for the next run comes again.
        if visitor.device not in self._told and len(self._told) < _MOST_NAMES:
            self._told.add(visitor.device)
            self.log.info("%s was told that the run is over", visitor.device)
            if len(self._told) == _MOST_NAMES:
                self.log.warning("%d devices were told so; others are not named", _MOST_NAMES)
        raise Refused(grpc.StatusCode.NOT_FOUND, f"the run is over: {self._reason}")

    def opened(self, session: Session) -> None:
        raise InvariantBroken("a session in a run that is over")

    def closed(self, session: Session, why: str = "") -> None:
        raise InvariantBroken("a session in a run that is over")

    def limit(self, kind: type[Message]) -> int:
        return 0

    async def prepare(self, message: Message, fill: Callable[[], None]) -> Checked:
        raise InvariantBroken("a message in a run that is over")

    def receive(self, session: Session, message: Message, checked: Checked | None = None) -> None:
        raise InvariantBroken("a message in a run that is over")

    def reject(self, session: Session, error: ProtocolViolation) -> None:
        raise InvariantBroken("a message in a run that is over")

    def take_records(self, session: Session, first: int, lines: Sequence[str]) -> int | None:
        raise InvariantBroken("records in a run that is over")


async def tell_devices(
    reason: str,
    seconds: float,
    listen: Address,
    *,
    tls: ServerTLS | None,
    access: AccessLists | None = None,
    timeouts: Timeouts = DEFAULT,
    interrupted: Callable[[], bool] = lambda: False,
    ready: Callable[[Address], None] = lambda _: None,
) -> None:
    """``reason``: why the run ended. Returns after ``seconds``, or when it is interrupted."""
    host = FinishedRun(reason)
    streams = ServerStreams(host, host, "", limit=0, tls=tls, access=access, timeouts=timeouts)
    address = streams.bind(listen)
    await streams.open()
    LOG.info("the run is over; listening on %s for %g s, to tell devices so", address, seconds)
    ready(address)
    end = time.monotonic() + seconds
    try:
        while (left := end - time.monotonic()) > 0 and not interrupted():
            streams.enforce_access()
            await asyncio.sleep(min(_INTERVAL, left))
    finally:
        await streams.close()
