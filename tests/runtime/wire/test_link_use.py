"""What a link carries, as far as what was sent over it tells."""

from __future__ import annotations

import asyncio

from fedoptima.core.messages import ActivationBatch
from fedoptima.core.types import Payload, PayloadId
from fedoptima.runtime.wire.outbox import LinkUse, Outbox


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_link_that_is_in_use_says_what_it_carries() -> None:
    clock = Clock()
    use = LinkUse(clock)
    clock.now += 10.0
    use.carried(4_000, 4.0)
    use.carried(2_000, 2.0)
    assert use.rate() == 1_000.0


def test_a_link_that_is_hardly_in_use_says_nothing() -> None:
    clock = Clock()
    use = LinkUse(clock)
    clock.now += 10.0
    use.carried(4_000, 0.001)  # a transport takes in what little comes
    assert use.rate() == 0.0


def test_what_was_said_once_does_not_count_again() -> None:
    clock = Clock()
    use = LinkUse(clock)
    clock.now += 1.0
    use.carried(1_000, 1.0)
    assert use.rate() == 1_000.0
    assert use.rate() == 0.0
    clock.now += 1.0
    use.carried(500, 1.0)
    assert use.rate() == 500.0


def test_an_outbox_notes_every_frame_that_its_reader_has_taken() -> None:
    class Noted(LinkUse):
        total = 0

        def carried(self, nbytes: int, seconds: float) -> None:
            assert seconds >= 0
            self.total += nbytes

    async def story() -> None:
        use = Noted()
        outbox = Outbox(use=use)
        outbox.put(ActivationBatch(1, Payload(PayloadId("d/0/1"), 0)))
        outbox.close()
        sent = [frame async for frame in outbox.frames()]
        assert len(sent) == 1
        assert use.total > 0

    asyncio.run(story())
