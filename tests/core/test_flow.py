from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.errors import ConfigError, InvariantBroken, ProtocolViolation
from fedoptima.core.flow import CappedFlow, OpenFlow
from fedoptima.core.influence import Share
from fedoptima.core.types import NodeId
from tests.support.effort import lines_executed

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def flow(cap: int, *devices: NodeId, **options: object) -> CappedFlow:
    capped = CappedFlow(cap, **options)  # type: ignore[arg-type]
    for device in devices:
        capped.joined(device, 0.0)
    return capped


def test_as_many_devices_as_the_cap_has_room_for_are_turned_on() -> None:
    capped = CappedFlow(2)
    assert [list(capped.joined(d, 0.0)) for d in (A, B, C)] == [[A], [B], []]
    capped.check(buffered=0)


def test_a_batch_that_arrives_takes_the_slot_its_credit_had_reserved() -> None:
    capped = flow(2, A, B, C)
    reception = capped.received(A, 1.0)
    assert reception.accepted
    assert list(reception.turn_on) == []  # one buffered, one granted: full
    capped.check(buffered=1)
    assert list(capped.consumed(A, 2.0)) == [C]


def test_a_cap_of_one_goes_round() -> None:
    capped = flow(1, A, B, C)
    turn, order = A, []
    for now in range(6):
        capped.received(turn, float(now))
        (turn,) = capped.consumed(turn, float(now))
        order.append(turn)
    assert order == [B, C, A, B, C, A]


def test_activations_without_a_turn_on_break_the_protocol_and_change_nothing() -> None:
    capped = flow(1, A, B)
    with pytest.raises(ProtocolViolation, match="b sent activations without a turn-on"):
        capped.received(B, 1.0)
    capped.check(buffered=0)
    assert capped.received(A, 1.0).accepted


def test_a_second_batch_on_one_credit_breaks_the_protocol() -> None:
    capped = flow(1, A)
    capped.received(A, 1.0)
    with pytest.raises(ProtocolViolation):
        capped.received(A, 1.0)


def test_a_leaving_device_gives_back_its_credit_and_its_slots() -> None:
    capped = flow(2, A, B, C)
    capped.received(A, 1.0)
    assert list(capped.left(B, 0, 2.0)) == [C]  # B's credit
    assert list(capped.left(A, 1, 3.0)) == []  # A's slot, but no device waits
    capped.check(buffered=0)


def test_a_device_that_left_the_line_is_not_turned_on() -> None:
    capped = flow(1, A, B, C)
    capped.left(B, 0, 1.0)
    capped.received(A, 1.0)
    assert list(capped.consumed(A, 2.0)) == [C]


def test_nobody_is_held_once_all_hold_as_much_as_each_other() -> None:
    capped = flow(8, A)  # alone, and never held
    little = Share(size=0.1, limit=0.01)
    capped.joined(B, 0.0, little)
    assert list(capped.received(B, 1.0, little).turn_on) == []  # not before A has sent a hundred
    capped.consumed(B, 1.0)
    capped.joined(C, 1.0)  # with the data of ten
    assert list(capped.left(C, 0, 2.0)) == []  # A, which has as little as B, is still there
    capped.hold_nobody()
    assert list(capped.expire(2.0)) == [B]
    capped.check(buffered=0)


def test_a_credit_that_is_not_used_in_time_goes_to_the_next_in_line() -> None:
    capped = flow(1, A, B, timeout=5.0)
    assert capped.deadline == 5.0
    assert list(capped.expire(4.9)) == []
    assert list(capped.expire(5.0)) == [B]
    assert capped.deadline == 10.0
    capped.check(buffered=0)


def test_a_credit_that_was_used_does_not_run_out_for_the_next_one() -> None:
    capped = flow(1, A, timeout=5.0)
    capped.received(A, 1.0)
    assert list(capped.consumed(A, 2.0)) == [A]  # good until 7
    capped.expire(5.0)
    assert capped.received(A, 6.0).accepted


def test_a_late_batch_is_used_where_a_slot_is_free() -> None:
    capped = flow(2, A, timeout=5.0)
    for now in (10.0, 20.0, 30.0):  # its link is slower than every credit lasts
        capped.expire(now)
        capped.check(buffered=0)
        reception = capped.received(A, now + 1)
        assert reception.accepted
        assert list(reception.turn_on) == [A]
        capped.check(buffered=1)
        capped.consumed(A, now + 2)


def test_a_late_batch_without_a_slot_is_dropped_and_its_device_lines_up_again() -> None:
    capped = flow(1, A, B, timeout=5.0)
    capped.expire(5.0)
    reception = capped.received(A, 6.0)
    assert not reception.accepted
    assert list(reception.turn_on) == []  # B holds the only credit
    capped.received(B, 7.0)
    assert list(capped.consumed(B, 8.0)) == [A]
    capped.check(buffered=0)


def test_a_device_that_rejoins_owes_no_late_batch() -> None:
    capped = flow(2, A, B, timeout=5.0)
    capped.expire(5.0)
    capped.left(A, 0, 6.0)
    assert list(capped.joined(A, 7.0)) == [A]
    assert capped.received(A, 8.0).accepted


def test_the_deadline_is_that_of_the_oldest_credit_still_out() -> None:
    capped = CappedFlow(3, timeout=5.0)
    for now, device in enumerate((A, B, C)):
        capped.joined(device, float(now))
    capped.received(A, 3.0)
    capped.left(B, 0, 3.0)
    assert capped.deadline == 7.0  # C's, granted at 2


def test_without_a_timeout_there_is_no_deadline() -> None:
    assert flow(1, A).deadline is None
    assert OpenFlow().deadline is None


def test_a_newcomer_cannot_own_the_line_until_it_has_caught_up() -> None:
    capped = flow(1, A)
    for now in range(10):
        capped.received(A, float(now))
        capped.consumed(A, float(now))
    capped.joined(B, 10.0)
    turns = []
    turn = A
    for now in range(11, 17):
        capped.received(turn, float(now))
        (turn,) = capped.consumed(turn, float(now))
        turns.append(turn)
    assert turns == [B, A, B, A, B, A]


def test_the_fifo_ablation_grants_in_order_of_arrival_in_the_line() -> None:
    capped = flow(2, A, B, balanced=False)
    assert list(capped.received(A, 1.0).turn_on) == []
    assert list(capped.consumed(A, 1.0)) == [A]
    capped.joined(C, 1.5)  # was never granted anything, and still goes behind B
    assert list(capped.received(B, 2.0).turn_on) == []
    assert list(capped.consumed(B, 2.0)) == [C]


@pytest.mark.parametrize(
    ("options", "message"), [({"cap": 0}, "cap"), ({"cap": 1, "timeout": 0.0}, "timeout")]
)
def test_impossible_settings_are_the_users_error(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CappedFlow(**options)


def test_a_wrong_count_is_noticed() -> None:
    with pytest.raises(InvariantBroken):
        flow(2, A).check(buffered=1)


def test_an_open_flow_turns_nobody_on_and_refuses_nothing() -> None:
    gate = OpenFlow()
    assert not any((gate.joined(A, 0.0), gate.consumed(A, 0.0), gate.left(A, 3, 0.0)))
    assert gate.received(A, 0.0).accepted


class Line:
    """Books of a capped flow, kept from what goes in and comes out alone."""

    def __init__(self, cap: int, *, balanced: bool, timeout: float | None) -> None:
        self.flow = CappedFlow(cap, balanced=balanced, timeout=timeout)
        self.cap = cap
        self.known: dict[NodeId, None] = {}
        self.present: dict[NodeId, None] = {}
        self.on: dict[NodeId, None] = {}  # turned on; perhaps too late by now
        self.buffered: dict[NodeId, int] = {}
        self.passed_over: dict[NodeId, int] = {}  # of those that wait: grants to others meanwhile

    def act(self, action: str, device: NodeId, now: float) -> None:
        capped = self.flow
        if action == "join" and device not in self.present:
            self.known[device] = self.present[device] = None
            self._wait(device)
            self._granted(capped.joined(device, now))
        elif action == "leave" and device in self.present:
            del self.present[device]
            self.on.pop(device, None)
            self.passed_over.pop(device, None)
            self._granted(capped.left(device, self.buffered.pop(device, 0), now))
        elif action == "send" and device in self.on:
            del self.on[device]
            self._wait(device)
            full = sum(self.buffered.values()) + len(capped._granted) >= self.cap
            reception = capped.received(device, now)
            assert reception.accepted or full, "dropped although a slot was free"
            self.buffered[device] = self.buffered.get(device, 0) + reception.accepted
            self._granted(reception.turn_on)
        elif action == "consume" and self.buffered.get(device):
            self.buffered[device] -= 1
            self._granted(capped.consumed(device, now))
        elif action == "expire":
            self._granted(capped.expire(now))
        capped.check(sum(self.buffered.values()))

    def _wait(self, device: NodeId) -> None:
        self.passed_over[device] = 0

    def _granted(self, devices: object) -> None:
        for device in devices:  # type: ignore[attr-defined]
            assert device not in self.on
            self.on[device] = None
            passed_over = self.passed_over.pop(device)
            assert passed_over < len(self.known), "not granted within K grants"
            for other in self.passed_over:
                self.passed_over[other] += 1


ACTIONS = st.tuples(
    st.sampled_from(["join", "join", "leave", "send", "send", "consume", "consume", "expire"]),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.0, 1.0, 4.0]),
)


@given(
    cap=st.integers(1, 9),
    balanced=st.booleans(),
    timeout=st.sampled_from([None, 3.0]),
    actions=st.lists(ACTIONS, max_size=150),
)
def test_a_waiting_device_is_granted_a_credit_within_k_grants(
    cap: int, balanced: bool, timeout: float | None, actions: list[tuple[str, int, float]]
) -> None:
    line = Line(cap, balanced=balanced, timeout=timeout)
    now = 0.0
    for action, number, later in actions:
        now += later
        line.act(action, NodeId(f"d{number}"), now)
        if timeout is None:
            assert sum(line.buffered.values()) + len(line.on) <= cap


def test_the_effort_per_batch_does_not_grow_with_the_fleet() -> None:
    def effort(fleet: int) -> int:
        devices = [NodeId(f"d{i}") for i in range(fleet)]
        capped = flow(2, *devices, timeout=60.0)

        def one_batch_through() -> None:
            capped.received(devices[0], 1.0)
            capped.consumed(devices[0], 1.0)
            capped.left(devices[1], 0, 1.0)
            capped.joined(devices[1], 1.0)
            capped.expire(1.0)
            assert capped.deadline is not None

        return lines_executed(one_batch_through)

    assert effort(1000) == effort(6)
