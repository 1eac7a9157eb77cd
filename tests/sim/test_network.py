from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.messages import (
    ENVELOPE_BYTES,
    ActivationBatch,
    Assignment,
    GlobalModel,
    GradientBatch,
    Message,
    ModelUpdate,
    TurnOn,
    is_bulk,
    nbytes,
)
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.sim.network import Envelope, Link, Passing, ServerLink
from fedoptima.testing.world import Description, Device, World
from tests.support.bench import payload
from tests.support.rows import FULL, fedoptima


def bulk(size: int, seq: int = 0) -> Envelope:
    """Activations that are so many bytes on the wire."""
    data = Payload(PayloadId(f"x/0/{seq}"), size - ENVELOPE_BYTES)
    return Envelope(ActivationBatch(seq, data), 1)


def urgent(size: int, version: int = 0) -> Envelope:
    data = Payload(PayloadId(f"m/0/{version}"), size - ENVELOPE_BYTES)
    return Envelope(ModelUpdate(version, 0, data), 1)


def drain(link: Link) -> list[tuple[float, Envelope]]:
    """Everything that is on the link, with the time it has left."""
    gone = []
    while (done := link.done_at()) is not None:
        gone.append((done, link.take(done)))
    return gone


@pytest.mark.parametrize(
    ("message", "size", "overtaken"),
    [
        (TurnOn(), ENVELOPE_BYTES, False),
        (Assignment("12345", FULL, 2), ENVELOPE_BYTES + 5, False),
        (GlobalModel(0, 0.0, payload("x", 100)), ENVELOPE_BYTES + 100, False),
        (ModelUpdate(0, 0, payload("x", 100)), ENVELOPE_BYTES + 100, False),
        (ActivationBatch(0, payload("x", 100)), ENVELOPE_BYTES + 100, True),
        (GradientBatch(0, 0, payload("x", 100)), ENVELOPE_BYTES + 100, True),
    ],
)
def test_messages_have_a_size_and_a_class(message: Message, size: int, overtaken: bool) -> None:
    assert nbytes(message) == size
    assert is_bulk(message) == overtaken


def test_envelopes_of_one_class_leave_one_after_the_other() -> None:
    link = Link(100.0, 0.0)
    envelopes = [bulk(1000, seq) for seq in range(3)]
    assert [link.put(envelope, 0.0) for envelope in envelopes] == [True, False, False]
    assert drain(link) == [(10.0, envelopes[0]), (20.0, envelopes[1]), (30.0, envelopes[2])]


def test_a_model_overtakes_activations_that_are_half_way_through() -> None:
    link = Link(100.0, 0.0)
    link.put(bulk(1000), 0.0)
    assert link.put(urgent(500), 4.0)  # 400 bytes of the batch are through
    assert drain(link) == [(9.0, urgent(500)), (15.0, bulk(1000))]


def test_models_do_not_overtake_each_other() -> None:
    link = Link(100.0, 0.0)
    link.put(bulk(1000), 0.0)
    link.put(urgent(500, 1), 4.0)
    assert not link.put(urgent(500, 2), 5.0)
    assert [envelope for _, envelope in drain(link)] == [urgent(500, 1), urgent(500, 2), bulk(1000)]


def test_activations_handed_over_meanwhile_wait_for_the_model_and_for_each_other() -> None:
    link = Link(100.0, 0.0)
    link.put(urgent(500), 0.0)
    assert not link.put(bulk(1000, 1), 1.0)
    assert not link.put(bulk(1000, 2), 2.0)
    assert [at for at, _ in drain(link)] == [5.0, 15.0, 25.0]


def test_an_idle_link_saves_nothing_up() -> None:
    link = Link(100.0, 0.0)
    link.put(bulk(1000), 50.0)
    assert link.done_at() == 60.0


def test_a_new_bandwidth_counts_for_what_is_left() -> None:
    link = Link(100.0, 0.0)
    link.put(bulk(1000), 0.0)
    link.set_bandwidth(50.0, 4.0)
    assert link.done_at() == 16.0


def test_what_was_announced_is_void_after_every_change() -> None:
    link = Link(100.0, 0.0)
    seen = [link.generation]
    link.put(bulk(1000), 0.0)
    seen.append(link.generation)
    link.put(urgent(100), 1.0)
    seen.append(link.generation)
    link.set_bandwidth(50.0, 1.5)
    seen.append(link.generation)
    link.take(4.0)
    seen.append(link.generation)
    link.clear(5.0)
    seen.append(link.generation)
    assert seen == sorted(set(seen))


def test_a_broken_connection_takes_its_envelopes_with_it() -> None:
    link = Link(100.0, 0.0)
    link.put(bulk(1000), 0.0)
    link.put(urgent(100), 1.0)
    link.clear(2.0)
    assert link.done_at() is None
    link.put(bulk(1000), 3.0)
    assert link.done_at() == 13.0


def test_packing_at_both_ends_takes_its_time_beside_the_transfer() -> None:
    link = Link(100.0, 0.0, packing=0.01)
    link.put(bulk(1000), 0.0)
    assert link.done_at() == pytest.approx(10.0 + 10.0)
    link.set_bandwidth(50.0, 10.0)  # a half is through
    assert link.done_at() == pytest.approx(10.0 + 10.0 + 5.0)


# ---- the server's own link -----------------------------------------------------------------------

ONE, TWO = NodeId("one"), NodeId("two")


def test_a_message_that_finds_the_servers_link_free_is_not_held_up() -> None:
    shared = ServerLink(100.0)
    assert not shared.enter(Passing(ONE, bulk(1000)), seconds=20.0, now=20.0)
    assert not shared.enter(Passing(ONE, bulk(1000)), seconds=20.0, now=40.0)
    assert shared.done_at() is None


def test_devices_that_send_at_once_share_the_servers_link() -> None:
    shared = ServerLink(100.0)
    # two links of 50 bytes per second fill it exactly, a third one is too much
    assert [shared.enter(Passing(ONE, bulk(1000)), 20.0, 20.0) for _ in range(3)] == [
        False,
        False,
        True,
    ]
    assert shared.done_at() == 30.0
    assert shared.enter(Passing(TWO, bulk(1000)), 20.0, 25.0)
    shared.take(30.0)
    assert shared.done_at() == 40.0


def test_a_device_alone_gets_no_more_than_the_servers_link() -> None:
    shared = ServerLink(100.0)
    assert shared.enter(Passing(ONE, bulk(1000)), seconds=1.0, now=1.0)
    assert shared.done_at() == 10.0


def test_a_model_overtakes_activations_on_the_servers_link_too() -> None:
    shared = ServerLink(100.0)
    shared.enter(Passing(ONE, bulk(1000)), 1.0, 1.0)
    shared.enter(Passing(TWO, urgent(500)), 1.0, 4.0)  # 400 bytes of the batch are through
    assert shared.done_at() == 9.0
    assert shared.take(9.0).device == TWO
    assert shared.done_at() == 15.0


HAPPENINGS = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),
        st.one_of(
            st.tuples(st.just("bulk"), st.integers(65, 900)),
            st.tuples(st.just("urgent"), st.integers(65, 900)),
            st.tuples(st.just("bandwidth"), st.sampled_from([10, 75, 400, 1000])),
        ),
    ),
    min_size=1,
    max_size=25,
)


@given(HAPPENINGS)
def test_whatever_happens_the_bytes_through_are_bandwidth_times_busy_time(
    happenings: list[tuple[float, tuple[str, int]]],
) -> None:
    link = Link(100.0, 0.0)
    now, handed_over, through, capacity = 0.0, 0, 0, 0.0
    order: dict[bool, list[tuple[str, Envelope]]] = {True: [], False: []}

    def advance(until: float) -> None:
        """Let the link work, summing up what it could have carried while it was busy."""
        nonlocal now, through, capacity
        while (done := link.done_at()) is not None and done <= until:
            capacity += (done - now) * link.bytes_per_second
            now = done
            envelope = link.take(done)
            assert (
                order[is_bulk(envelope.message)].pop(0)[1] == envelope
            )  # in the order handed over
            through += nbytes(envelope.message)
        if link.done_at() is not None and until != float("inf"):
            capacity += (until - now) * link.bytes_per_second
        if until != float("inf"):
            now = until

    for number, (later, (what, size)) in enumerate(happenings):
        advance(now + later)
        if what == "bandwidth":
            link.set_bandwidth(float(size), now)
            continue
        envelope = bulk(size, number) if what == "bulk" else urgent(size, number)
        order[what == "bulk"].append((what, envelope))
        link.put(envelope, now)
        handed_over += size
    advance(float("inf"))
    assert through == handed_over
    assert capacity == pytest.approx(handed_over, rel=1e-6)


def test_latency_delays_every_message_and_no_more_than_once() -> None:
    def begins(latency: float) -> float:
        world = World(Description(fedoptima(), [Device(latency=latency)], iterations=1))
        world.run()
        return next(r.at for r in world.records if r.node == "d0" and "LoadModel" in str(r.effects))

    # Join up; assignment, credit and model come down together.
    assert begins(0.5) == pytest.approx(begins(0.0) + 2 * 0.5)


@given(
    st.lists(st.tuples(st.floats(0.0, 9.0), st.booleans(), st.integers(65, 900)), max_size=30),
    st.sampled_from([20.0, 100.0, 1000.0]),
)
def test_all_devices_together_never_get_more_than_the_servers_bandwidth(
    sent: list[tuple[float, bool, int]], own: float
) -> None:
    """In any time, at most as much is through as the link carries in it."""
    shared, now = ServerLink(100.0), 0.0
    through: list[tuple[float, float, int]] = []  # from the first byte that can have moved, to

    def advance(until: float) -> None:
        while (done := shared.done_at()) is not None and done <= until:
            message = shared.take(done).message
            through.append((begun[id(message)], done, nbytes(message)))

    begun: dict[int, float] = {}
    kept = []  # so that no two messages have the same id
    for number, (later, model, size) in enumerate(sent):
        now += later
        advance(now)
        envelope = urgent(size, number) if model else bulk(size, number)
        kept.append(envelope)
        begun[id(envelope.message)] = now - size / own
        if not shared.enter(Passing(ONE, envelope), size / own, now):
            through.append((begun[id(envelope.message)], now, size))
    advance(float("inf"))
    assert len(through) == len(sent)
    for start in {each[0] for each in through}:
        for end in {each[1] for each in through}:
            inside = sum(size for a, b, size in through if a >= start and b <= end)
            assert inside <= 100.0 * max(0.0, end - start) * (1 + 1e-9) + 1e-6
