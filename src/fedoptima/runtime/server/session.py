"""One connection of one device, as the server sees it: from its welcome to its end."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Protocol

import grpc

from fedoptima.core.errors import ProtocolViolation, Unresponsive
from fedoptima.core.messages import Message
from fedoptima.core.text import printable
from fedoptima.core.types import NodeId
from fedoptima.runtime.clock import OffsetClock
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import Assembler, MessageLimit
from fedoptima.runtime.wire.frames import Frame
from fedoptima.runtime.wire.outbox import Outbox
from fedoptima.runtime.wire.tensors import Memory

_MOST_DETAILS = 1_000  # characters


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a device is sent away; the device reads the text."""

    code: grpc.StatusCode
    text: str

    @property
    def details(self) -> str:
        """As it travels: gRPC sends it as a header, where there is not much room."""
        return printable(self.text, _MOST_DETAILS)


def refusal_for(error: ProtocolViolation) -> Refusal:
    """What the device has sent it would send again; one whose link stalled may come back."""
    stalled = isinstance(error, Unresponsive)
    code = grpc.StatusCode.UNAVAILABLE if stalled else grpc.StatusCode.INVALID_ARGUMENT
    return Refusal(code, str(error))


class SessionOutbox(Protocol):
    @property
    def held(self) -> int: ...
    def put(self, message: Message) -> None: ...


class SessionClock(Protocol):
    """The device's clock in terms of the server's."""

    @property
    def known(self) -> bool: ...
    def ours(self, theirs: float) -> float: ...


class DeviceSession(Protocol):
    """A session as the server needs it, whichever process has the connection."""

    device: NodeId
    number: int
    process: str
    peer: str

    @property
    def outbox(self) -> SessionOutbox: ...
    @property
    def clock(self) -> SessionClock: ...
    def end(self, refusal: Refusal | None = None) -> None: ...
    async def answers(self, now: float, patience: float) -> bool: ...


class Session:
    def __init__(self, device: NodeId, number: int, process: str, peer: str) -> None:
        self.device = device
        self.number = number
        self.process = process  # of the device
        self.peer = peer  # its address, for the log
        self.certificate: int | None = None  # its serial number
        self.outbox = Outbox()
        self.clock = OffsetClock()
        self.probed = 0  # bytes of the device's uplink probe
        # Done when the server ends the session; with a refusal if the device is to know why.
        self.ended: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self.finished = asyncio.Event()  # the stream is closed
        self._answered = asyncio.Event()

    def receive_with(
        self, *, limit: MessageLimit, pinned: bool, later: bool, memory: Memory | None = None
    ) -> None:
        self.assembler = Assembler(limit=limit, pinned=pinned, later=later, memory=memory)
        self.heard = time.monotonic()  # the last frame of a message

    def take(self, frame: Frame) -> Message | None:
        """The message that a frame of one completes, if it does."""
        self.heard = time.monotonic()
        return self.assembler.feed(frame)

    def stalled(self, patience: float) -> str:
        """What does not go on, for longer than that; empty: nothing."""
        now = time.monotonic()
        if self.assembler.waits and now - self.heard > patience:
            return f"a message stopped half-way, {patience:g} s ago"
        if self.outbox.stuck(now) > patience:
            return f"it has not read what it was sent for {patience:g} s"
        return ""

    def acknowledge(self, records: int) -> None:
        """So many of the device's own records are on disk."""
        ack = wire.TelemetryAck(records=records)
        self.outbox.put_frame(wire.Frame(telemetry_ack=ack))

    def end(self, refusal: Refusal | None = None) -> None:
        if not self.ended.done():
            self.ended.set_result(refusal)

    # ---- pings -------------------------------------------------------------------------------

    def ping(self, now: float) -> None:
        self._answered.clear()
        self.outbox.put_frame(wire.Frame(ping=wire.Ping(sent=now)))

    def pong(self, pong: wire.Pong, now: float) -> None:
        if not (0 <= pong.sent <= now and math.isfinite(pong.device_time)):
            raise ProtocolViolation("it answered a ping that was never sent")
        self.clock.answered(pong.sent, pong.device_time, now)
        self._answered.set()

    async def answers(self, now: float, patience: float) -> bool:
        """Does the device answer?"""
        self.ping(now)
        try:
            async with asyncio.timeout(patience):
                await self._answered.wait()
        except TimeoutError:
            return False
        return True
