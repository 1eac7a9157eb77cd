"""After a restart a barrier hears of its devices when all are back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.messages import Join, Message
from fedoptima.core.types import NodeId
from fedoptima.runtime.server.rejoin import Homecoming
from fedoptima.runtime.server.session import Session
from fedoptima.runtime.wire import wire_pb2 as wire

A, B = NodeId("a"), NodeId("b")
JOIN = Join(0, 1, 1.0, 1.0)


def run(
    story: Callable[[list[tuple[NodeId, list[Message]]], float], None], patience: float
) -> list:
    told: list[tuple[NodeId, list[Message]]] = []

    async def tell() -> None:
        story(told, patience)
        await asyncio.sleep(0)
        await asyncio.sleep(patience if patience < 1 else 0)

    asyncio.run(tell())
    return told


def homecoming(told: list[tuple[NodeId, list[Message]]], patience: float) -> Homecoming:
    return Homecoming([A, B], patience, lambda s, messages: told.append((s.device, messages)))


def session(device: NodeId, number: int = 1) -> Session:
    return Session(device, number, wire.Hello(process=f"{device}{number}"), "here")


def test_nobody_is_told_of_until_all_are_back_and_then_by_name() -> None:
    def story(told: list[tuple[NodeId, list[Message]]], patience: float) -> None:
        wait = homecoming(told, patience)
        b = session(B)
        wait.opened(b)
        wait.received(b, JOIN)
        a = session(A)
        wait.opened(a)  # a new process: it takes a while until it has something to say
        assert not told
        assert not wait.over
        wait.received(a, JOIN)
        assert wait.over
        assert not wait.holds(b)

    assert run(story, 100.0) == [(A, [JOIN]), (B, [JOIN])]


def test_one_that_does_not_wait_to_be_answered_is_not_listened_to_for_ever() -> None:
    def story(told: list[tuple[NodeId, list[Message]]], patience: float) -> None:
        wait = homecoming(told, patience)
        b = session(B)
        wait.opened(b)
        for _ in range(3):
            wait.received(b, JOIN)
        with pytest.raises(ProtocolViolation, match="does not wait to be answered"):
            wait.received(b, JOIN)

    run(story, 100.0)


def test_when_patience_is_over_those_who_are_back_are_told_of() -> None:
    def story(told: list[tuple[NodeId, list[Message]]], patience: float) -> None:
        homecoming(told, patience).opened(session(B))

    assert run(story, 0.01) == [(B, [])]


def test_one_that_goes_again_is_not_counted_as_back() -> None:
    def story(told: list[tuple[NodeId, list[Message]]], patience: float) -> None:
        wait = homecoming(told, patience)
        first, second = session(A), session(A, 2)
        wait.opened(first)
        wait.received(first, JOIN)
        wait.closed(first)
        b = session(B)
        wait.opened(b)
        wait.received(b, JOIN)
        assert not told
        wait.opened(second)
        wait.received(second, JOIN)

    assert run(story, 100.0) == [(A, [JOIN]), (B, [JOIN])]


def test_the_end_of_a_session_that_was_replaced_changes_nothing() -> None:
    def story(told: list[tuple[NodeId, list[Message]]], patience: float) -> None:
        wait = homecoming(told, patience)
        old, new = session(A), session(A, 2)
        wait.opened(old)
        wait.opened(new)
        wait.closed(old)
        assert wait.holds(new)

    run(story, 100.0)


def test_where_nobody_is_expected_nobody_waits() -> None:
    async def story() -> None:
        assert Homecoming([], 1.0, lambda *_: None).over

    asyncio.run(story())
