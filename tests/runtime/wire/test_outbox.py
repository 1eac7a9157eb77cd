"""What is urgent overtakes what is not, between any two frames; nothing else changes places."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Coroutine

import torch

from fedoptima.core.messages import ActivationBatch, GlobalModel, Stop, TurnOn
from fedoptima.core.types import Payload, PayloadId
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import CHUNK_BYTES, INLINE_BYTES, URGENT, Assembler
from fedoptima.runtime.wire.frames import Chunk, Frame
from fedoptima.runtime.wire.outbox import LinkPace, Outbox

SLOW = 41_000.0  # bytes/s: chunks of 4100 bytes


def run(story: Coroutine[object, object, None]) -> None:
    """A story that waits for ever is a failure, not a hanging test run."""
    asyncio.run(asyncio.wait_for(story, timeout=120))


class NoWaiting(LinkPace):
    """A slow link, but for those who do not look at the clock."""

    def __init__(self) -> None:
        super().__init__(SLOW)
        self.carried: list[int] = []

    def delay(self, nbytes: int) -> float:
        self.carried.append(nbytes)
        return 0.0


class Standstill(LinkPace):
    def delay(self, nbytes: int) -> float:
        return 3600.0


def payload(chunks: int, size: int = CHUNK_BYTES) -> Payload:
    tensors = {"x": torch.arange(chunks * size // 4, dtype=torch.int32)}
    return Payload(PayloadId("phone/0/1"), chunks * size, tensors)


def batch(seq: int, chunks: int = 2) -> ActivationBatch:
    return ActivationBatch(seq, payload(chunks))


def ping(sent: float = 0.0) -> wire.Frame:
    return wire.Frame(ping=wire.Ping(sent=sent))


def label(frame: Frame) -> str:
    if isinstance(frame, Chunk):
        return "urgent chunk" if frame.lane == URGENT else "bulk chunk"
    kind = frame.WhichOneof("kind")
    return frame.head.WhichOneof("message") if kind == "head" else str(kind)


async def rest(frames: AsyncIterator[Frame]) -> list[str]:
    return [label(frame) async for frame in frames]


def test_messages_leave_whole_and_in_the_order_of_their_lane() -> None:
    async def story() -> None:
        outbox = Outbox()
        sent = [batch(1), batch(2, 3), batch(3, 0)]
        for message in sent:
            outbox.put(message)
        outbox.close()
        assembler = Assembler(limit=1 << 30)
        found = [assembler.feed(frame) async for frame in outbox.frames()]
        assert [message for message in found if message] == sent

    run(story())


def test_small_messages_are_one_frame_for_a_peer_that_reads_it() -> None:
    async def frames_of(nbytes: int, allowed: int, pace: LinkPace | None = None) -> list[str]:
        outbox = Outbox(pace)
        outbox.allow_inline(allowed)
        outbox.put(ActivationBatch(1, payload(1, nbytes)))
        outbox.close()
        return await rest(outbox.frames())

    async def story() -> None:
        whole, cut = ["activation_batch"], ["activation_batch", "bulk chunk"]
        assert await frames_of(4000, allowed=0) == cut  # an older one, which says nothing
        assert await frames_of(4000, allowed=1 << 30) == whole
        assert await frames_of(4000, allowed=3999) == cut
        assert await frames_of(INLINE_BYTES, allowed=1 << 30) == whole
        assert await frames_of(INLINE_BYTES + 4, allowed=1 << 30) == cut
        # An urgent message waits for no more than a chunk.
        assert await frames_of(4100, 1 << 30, NoWaiting()) == whole
        assert await frames_of(4104, 1 << 30, NoWaiting()) == [*cut, "bulk chunk"]

    run(story())


def test_urgent_messages_overtake_between_two_chunks() -> None:
    async def story() -> None:
        outbox = Outbox()
        outbox.put(batch(1, 3))
        frames = outbox.frames()
        assert [label(await anext(frames)) for _ in range(2)] == ["activation_batch", "bulk chunk"]
        outbox.put(TurnOn())
        outbox.put(GlobalModel(1, 0.0, payload(2)))
        assert label(await anext(frames)) == "turn_on"
        assert [label(await anext(frames)) for _ in range(2)] == ["global_model", "urgent chunk"]
        outbox.put(Stop("enough"))  # does not overtake the model: they share a lane
        outbox.put_frame(ping())  # does
        outbox.close()
        assert await rest(frames) == ["ping", "urgent chunk", "stop", "bulk chunk", "bulk chunk"]

    run(story())


def test_the_drivers_frames_keep_their_order() -> None:
    async def story() -> None:
        outbox = Outbox()
        for sent in (3.0, 1.0, 2.0):
            outbox.put_frame(ping(sent))
        outbox.close()
        assert [frame.ping.sent async for frame in outbox.frames()] == [3.0, 1.0, 2.0]

    run(story())


def test_the_drivers_frames_that_wait_are_counted() -> None:
    async def story() -> None:
        outbox = Outbox()
        outbox.put(TurnOn())
        outbox.put_frame(ping())
        outbox.put_frame(ping())
        assert outbox.unread == 2
        await anext(outbox.frames())
        assert outbox.unread == 1

    run(story())


def test_an_empty_outbox_waits_and_a_closed_one_ends() -> None:
    async def story() -> None:
        outbox = Outbox()
        reading = asyncio.create_task(rest(outbox.frames()))
        await asyncio.sleep(0)
        outbox.put(TurnOn())
        await asyncio.sleep(0)
        assert not reading.done()
        outbox.put(Stop("enough"))
        outbox.close()
        assert await reading == ["turn_on", "stop"]

    run(story())


def test_closing_wakes_a_waiting_reader() -> None:
    async def story() -> None:
        outbox = Outbox()
        reading = asyncio.create_task(rest(outbox.frames()))
        await asyncio.sleep(0)
        outbox.close()
        assert await reading == []

    run(story())


def test_dropping_ends_in_the_middle_of_a_message() -> None:
    async def story() -> None:
        outbox = Outbox()
        outbox.put(batch(1, 3))
        outbox.put(batch(2))
        frames = outbox.frames()
        await anext(frames)
        outbox.put(TurnOn())
        outbox.put_frame(ping())
        outbox.drop()
        assert await rest(frames) == []
        assert outbox.idle

    run(story())


def test_what_is_put_in_after_the_end_is_not_sent() -> None:
    async def story() -> None:
        outbox = Outbox()
        outbox.put(TurnOn())
        outbox.close()
        outbox.put(Stop("late"))
        outbox.put_frame(ping())
        assert await rest(outbox.frames()) == ["turn_on"]

    run(story())


def test_an_outbox_is_idle_when_the_reader_has_sent_its_last_frame() -> None:
    async def story() -> None:
        outbox = Outbox()
        assert outbox.idle
        outbox.put(batch(1, 1))
        assert not outbox.idle
        frames = outbox.frames()
        for _ in range(2):
            await anext(frames)
            assert not outbox.idle
        waiting = asyncio.create_task(rest(frames))  # comes back: the last frame has been sent
        await asyncio.sleep(0)
        assert outbox.idle
        outbox.put_frame(ping())
        assert not outbox.idle
        outbox.close()
        assert await waiting == ["ping"]

    run(story())


def test_a_frame_in_the_readers_hand_has_not_been_sent() -> None:
    async def story() -> None:
        outbox = Outbox()
        outbox.put_frame(ping())
        frames = outbox.frames()
        await anext(frames)
        assert not outbox.idle
        outbox.close()
        assert await rest(frames) == []
        assert outbox.idle

    run(story())


def test_a_dropped_outbox_keeps_no_tensors() -> None:
    async def story() -> None:
        outbox = Outbox()
        begun, waiting = batch(1), batch(2)
        kept = [weakref.ref(message.data.value["x"]) for message in (begun, waiting)]
        outbox.put(begun)
        outbox.put(waiting)
        frames = outbox.frames()
        await anext(frames)
        del begun, waiting
        assert all(reference() is not None for reference in kept)
        outbox.drop()
        assert [reference() for reference in kept] == [None, None]

    run(story())


def test_a_slow_link_gets_small_chunks_and_carries_every_byte() -> None:
    async def story() -> None:
        pace = NoWaiting()
        outbox = Outbox(pace)
        outbox.put(batch(1, 1))
        outbox.close()
        sizes = [f.nbytes async for f in outbox.frames() if isinstance(f, Chunk)]
        assert max(sizes) == pace.chunk_bytes < CHUNK_BYTES == sum(sizes)
        assert pace.carried[1:] == sizes
        assert pace.carried[0] > 0

    run(story())


def test_a_frame_arrives_when_the_link_has_carried_it() -> None:
    async def story() -> None:
        outbox = Outbox(Standstill(SLOW))
        reading = asyncio.create_task(rest(outbox.frames()))
        outbox.put(TurnOn())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not reading.done()
        assert not outbox.idle
        outbox.drop()
        assert await reading == []

    run(story())
