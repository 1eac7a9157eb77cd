"""What is still to be sent to one peer. Whoever sends never waits.

At every frame the most urgent thing goes first: the driver's own frames, then control messages and
models, then activations and gradients. Within each of the three, the order is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

from fedoptima.core.messages import Message
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import (
    BULK,
    CHUNK_BYTES,
    URGENT,
    Chunk,
    Frame,
    Outgoing,
    encode,
    frame_bytes,
)
from fedoptima.runtime.wire.link_pace import LinkPace


class Outbox:
    """For one session and one reader of ``frames``. What is put in after its end is not sent."""

    def __init__(self, pace: LinkPace | None = None) -> None:
        self._pace = pace
        self._chunk_bytes = min(CHUNK_BYTES, pace.chunk_bytes) if pace else CHUNK_BYTES
        self._own: deque[wire.Frame] = deque()
        self._waiting: dict[int, deque[Outgoing]] = {URGENT: deque(), BULK: deque()}
        self._begun: dict[int, Iterator[Chunk]] = {}
        self._in_hand = False  # the reader has been given a frame and has not come back
        self._closed = False
        self._changed = asyncio.Event()
        self._dropped = asyncio.Event()

    @property
    def idle(self) -> bool:
        """Everything put in so far has been sent."""
        return not (self._in_hand or self._own or self._begun or any(self._waiting.values()))

    @property
    def unread(self) -> int:
        """Of the driver's own frames, how many wait."""
        return len(self._own)

    def put(self, message: Message) -> None:
        if not self._closed:
            outgoing = encode(message)
            self._waiting[outgoing.lane].append(outgoing)
            self._changed.set()

    def put_frame(self, frame: wire.Frame) -> None:
        if not self._closed:
            self._own.append(frame)
            self._changed.set()

    def close(self) -> None:
        """Send what is here, then end."""
        self._closed = True
        self._changed.set()

    def drop(self) -> None:
        """Send nothing more."""
        self._dropped.set()
        self._own.clear()
        self._begun.clear()
        for messages in self._waiting.values():
            messages.clear()
        self.close()

    async def frames(self) -> AsyncIterator[Frame]:
        while True:
            frame = self._next()
            if frame is None:
                if self._closed:
                    return
                self._changed.clear()
                await self._changed.wait()
                continue
            self._in_hand = True
            if self._pace:  # as on a real link: on its way, and what comes now must wait for it
                await self._travel(self._pace.delay(frame_bytes(frame)))
            if not self._dropped.is_set():
                yield frame
            self._in_hand = False

    async def _travel(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._dropped.wait()

    def _next(self) -> Frame | None:
        """The most urgent frame there is."""
        if self._own:
            return self._own.popleft()
        return self._next_of(URGENT) or self._next_of(BULK)

    def _next_of(self, lane: int) -> Frame | None:
        if lane in self._begun:
            chunk = next(self._begun[lane], None)
            if chunk is not None:
                return chunk
            del self._begun[lane]
        if not self._waiting[lane]:
            return None
        outgoing = self._waiting[lane].popleft()
        self._begun[lane] = outgoing.chunks(self._chunk_bytes)
        return outgoing.head
