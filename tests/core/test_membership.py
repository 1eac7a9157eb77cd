from __future__ import annotations

import pytest

from fedoptima.core.errors import InvariantBroken
from fedoptima.core.membership import Roster
from fedoptima.core.messages import Join
from fedoptima.core.types import NodeId, PayloadId

A, B = NodeId("a"), NodeId("b")


def roster(samples: int = 8) -> Roster:
    people = Roster()
    people.sessions[A] = 1
    people.add(A, Join(0, samples, 1.0, 1.0))
    return people


def test_a_device_that_returns_with_other_samples_counts_with_those() -> None:
    people = roster(8)
    people.add(A, Join(1, 5, 1.0, 1.0))
    assert people.shares.total == 5
    people.check()


def test_samples_of_a_device_that_left_are_part_of_no_epoch() -> None:
    people = roster(8)
    people.sessions[B] = 1
    people.add(B, Join(0, 10**9, 1.0, 1.0))
    people.remove(B)
    assert people.shares.total == 8
    people.check()


def test_only_the_last_settled_update_is_remembered() -> None:
    people = roster()
    for ticket in (1, 2):
        people.settle(A, PayloadId(f"a/0/{ticket}"))
    assert people.has_settled(A, PayloadId("a/0/2"))
    assert not people.has_settled(A, PayloadId("a/0/1"))
    assert not people.has_settled(NodeId("b"), PayloadId("a/0/2"))


def test_a_member_of_a_session_that_is_over_is_noticed() -> None:
    people = roster()
    people.sessions[A] = 2
    with pytest.raises(InvariantBroken, match="session that is over"):
        people.check()


def test_a_device_cannot_owe_an_update_and_be_owed_a_model() -> None:
    people = roster()
    people.members[A].owes_update = people.members[A].awaits_model = True
    with pytest.raises(InvariantBroken, match="owes an update"):
        people.check()


def test_samples_that_do_not_add_up_are_noticed() -> None:
    people = roster()
    people.shares._sum += 1
    with pytest.raises(InvariantBroken, match="add up"):
        people.check()
