"""What is still to be sent to one peer. Whoever sends never waits.

At every frame the most urgent thing goes first: the driver's own frames, then control messages and
models, then activations and gradients. Within each of the three, the order is kept.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Final

from fedoptima.core.errors import ConfigError
from fedoptima.core.messages import Message
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import BULK, CHUNK_BYTES, INLINE_BYTES, URGENT, Outgoing, encode
from fedoptima.runtime.wire.frames import Chunk, Frame, frame_bytes

BURST_SECONDS: Final = 0.05  # sleeping is not exact: what was overslept so far is made up for
CHUNK_SECONDS: Final = 0.1  # an urgent message waits no longer than this for the chunk before it
SMALLEST_CHUNK: Final = 4096
IN_USE: Final = 0.5  # of the time: a link that is in use less does not say what it carries


class LinkPace:
    """A link slowed to a stated rate, so that a testbed can be run on one machine in real time.

    Bytes leave one after another, each when the link has carried those before it.
    """

    def __init__(
        self, bytes_per_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not 0 < bytes_per_second < float("inf"):
            raise ConfigError(f"a link of {bytes_per_second} bytes/s: must be a number above 0")
        self._rate = bytes_per_second
        self._clock = clock
        self._free_at = clock()  # when the link has carried everything so far

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk that keeps the link responsive."""
        return max(SMALLEST_CHUNK, int(self._rate * CHUNK_SECONDS))

    def delay(self, nbytes: int) -> float:
        """Seconds from now until ``nbytes`` more have been carried."""
        now = self._clock()
        self._free_at = max(self._free_at, now - BURST_SECONDS) + nbytes / self._rate
        return max(0.0, self._free_at - now)


class LinkUse:
    """What a link carries while it has something to carry.

    A transport takes in what little comes, however slow the link is: only one that is held up
    most of the time says what the link carries.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._since = self._clock()
        self._bytes, self._seconds = 0, 0.0

    def carried(self, nbytes: int, seconds: float) -> None:
        self._bytes += nbytes
        self._seconds += seconds

    def rate(self) -> float:
        """Bytes per second since it was asked last; 0: it was not in use enough to tell."""
        nbytes, seconds, passed = self._bytes, self._seconds, self._clock() - self._since
        self._begin()
        return nbytes / seconds if seconds > 0 and seconds >= IN_USE * passed else 0.0


class Outbox:
    """For one session and one reader of ``frames``. What is put in after its end is not sent."""

    def __init__(self, pace: LinkPace | None = None, use: LinkUse | None = None) -> None:
        self._pace = pace
        self._use = use
        self._inline = 0
        self._chunk_bytes = min(CHUNK_BYTES, pace.chunk_bytes) if pace else CHUNK_BYTES
        self._own: deque[wire.Frame] = deque()
        self._waiting: dict[int, deque[Outgoing]] = {URGENT: deque(), BULK: deque()}
        self._begun: dict[int, Iterator[Chunk]] = {}
        self._in_hand = False  # the reader has been given a frame and has not come back
        self._given = 0.0  # when
        self._held = 0
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None  # what the reader waits for
        self._dropped = asyncio.Event()

    def allow_inline(self, nbytes: int) -> None:
        """The peer reads up to so many bytes of tensors in a message's head."""
        self._inline = min(nbytes, INLINE_BYTES, self._chunk_bytes)

    @property
    def idle(self) -> bool:
        """Everything put in so far has been sent."""
        return not (self._in_hand or self._own or self._begun or any(self._waiting.values()))

    @property
    def unread(self) -> int:
        """Of the driver's own frames, how many wait."""
        return len(self._own)

    @property
    def held(self) -> int:
        """Bytes of the messages of which nothing has been sent yet, about."""
        return self._held

    def stuck(self, now: float) -> float:
        """For how many seconds a frame has been with the transport, which does not take it."""
        return now - self._given if self._in_hand else 0.0

    def put(self, message: Message) -> None:
        if not self._closed:
            outgoing = encode(message, inline=self._inline)
            self._waiting[outgoing.lane].append(outgoing)
            self._held += outgoing.held
            self._wake()

    def put_frame(self, frame: wire.Frame) -> None:
        if not self._closed:
            self._own.append(frame)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Send what is here, then end."""
        self._closed = True
        self._wake()

    def drop(self) -> None:
        """Send nothing more."""
        self._dropped.set()
        self._own.clear()
        self._begun.clear()
        for messages in self._waiting.values():
            messages.clear()
        self._held = 0
        self.close()

    async def frames(self) -> AsyncIterator[Frame]:
        while True:
            frame = self._next()
            if frame is None:
                if self._closed:
                    return
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
                continue
            self._in_hand, self._given = True, time.monotonic()
            began = self._given
            if self._pace:  # as on a real link: on its way, and what comes now must wait for it
                await self._travel(self._pace.delay(frame_bytes(frame)))
                self._given = time.monotonic()
            if not (self._closed and self._dropped.is_set()):
                yield frame
            self._in_hand = False
            if self._use is not None:
                self._use.carried(frame_bytes(frame), time.monotonic() - began)

    async def _travel(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._dropped.wait()

    def _next(self) -> Frame | None:
        """The most urgent frame there is."""
        if self._own:
            return self._own.popleft()
        for lane, waiting in self._waiting.items():  # the urgent one comes first
            if (waiting or lane in self._begun) and (frame := self._next_of(lane)) is not None:
                return frame
        return None

    def _next_of(self, lane: int) -> Frame | None:
        if lane in self._begun:
            chunk = next(self._begun[lane], None)
            if chunk is not None:
                return chunk
            del self._begun[lane]
        if not self._waiting[lane]:
            return None
        outgoing = self._waiting[lane].popleft()
        self._held -= outgoing.held
        if outgoing.tensors:
            self._begun[lane] = outgoing.chunks(self._chunk_bytes)
        return outgoing.head
