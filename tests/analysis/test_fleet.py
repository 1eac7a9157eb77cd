"""What is shown of a device is the latest that is known of it, whoever said it."""

from __future__ import annotations

from fedoptima.analysis.fleet import DeviceFacts, DeviceState, FleetAccount
from fedoptima.core.effects import Note, Send
from fedoptima.core.events import Connected, Disconnected, Evaluated, JobFailed, Received
from fedoptima.core.jobs import ExportModel, Forward, LoadModel, PlanRun, Prepare
from fedoptima.core.messages import Failed, GlobalModel, Join, ModelUpdate
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record
from tests.analysis.stories import (
    DATA,
    A,
    B,
    answers,
    hands_in,
    joins,
    merge,
    merged,
    planned,
    starts,
    step,
    stepped,
    told,
    update,
)


def account(*records: Record) -> FleetAccount:
    fleet = FleetAccount()
    for record in records:
        fleet.observe(record)
    return fleet


def of_a(*records: Record) -> DeviceFacts:
    return account(*records).devices[A]


def test_a_device_gets_ready_joins_and_trains_what_it_is_sent() -> None:
    connected = told(1.0, SERVER, Connected(A, 1))
    joined = told(3.0, SERVER, Received(A, 1, Join(0, 8, 1.0, 1.0)))
    assert of_a(connected).state is DeviceState.READYING
    facts = of_a(connected, joined)
    assert (facts.state, facts.since, facts.join) == (
        DeviceState.WAITING,
        3.0,
        Join(0, 8, 1.0, 1.0),
    )
    facts = of_a(connected, joined, told(4.0, SERVER, Connected(B, 2), *answers(A)))
    assert (facts.state, facts.version) == (DeviceState.TRAINING, 1)
    assert of_a(connected, joined, hands_in(5.0, A)).state is DeviceState.WAITING


def test_a_device_that_comes_back_in_the_middle_of_a_round_is_training() -> None:
    again = told(1.0, SERVER, Received(A, 2, Join(0, 8, 1.0, 1.0, 3, training=True)))
    assert of_a(*joins(0.0, A), again).state is DeviceState.TRAINING


def test_a_device_says_more_exactly_what_it_does() -> None:
    sent = told(1.0, SERVER, Connected(B, 1), *answers(A))
    loading = starts(1.1, A, LoadModel(DATA, 0.0))
    training = starts(1.2, A, Forward(0))
    exporting = starts(1.8, A, ExportModel())
    sending = told(1.9, A, Connected(SERVER, 1), Send(SERVER, 1, ModelUpdate(0, 8, DATA)))
    records = [*joins(0.0, A), sent]
    for record, state in (
        (starts(1.05, A, Prepare("")), DeviceState.LOADING),
        (loading, DeviceState.LOADING),
        (training, DeviceState.TRAINING),
        (exporting, DeviceState.SENDING),
        (sending, DeviceState.SENDING),
    ):
        records.append(record)
        assert of_a(*records).state is state


def test_old_news_of_a_device_change_nothing() -> None:
    handed_in = update(2.0, A, "u")
    late = starts(1.9, A, Forward(7))  # its record comes about a second later
    assert of_a(*joins(0.0, A), handed_in, late).state is DeviceState.WAITING


def test_a_state_begins_once() -> None:
    facts = of_a(*joins(0.0, A), starts(1.0, A, Forward(0)), starts(2.0, A, Forward(1)))
    assert (facts.since, facts.heard) == (1.0, 2.0)


def test_a_lost_device_is_away_until_it_is_back() -> None:
    lost = told(5.0, SERVER, Disconnected(A, 1))
    facts = of_a(*joins(0.0, A), lost)
    assert (facts.state, facts.since, facts.here) == (DeviceState.AWAY, 5.0, False)
    assert facts.heard == 0.0
    back = of_a(*joins(0.0, A), lost, told(9.0, SERVER, Connected(A, 2)))
    assert (back.state, back.here) == (DeviceState.READYING, True)


def test_a_failed_device_stays_failed_when_its_connection_ends() -> None:
    failed = told(
        4.0,
        SERVER,
        Received(A, 1, Failed("no memory")),
        Note("device failed", A, "no memory"),
    )
    facts = of_a(*joins(0.0, A), failed, told(4.1, SERVER, Disconnected(A, 1)))
    assert (facts.state, facts.error, facts.here) == (DeviceState.FAILED, "no memory", False)
    again = of_a(*joins(0.0, A), failed, *joins(6.0, A))
    assert (again.state, again.error) == (DeviceState.WAITING, "")


def test_a_failed_job_is_known_from_the_device_alone() -> None:
    facts = of_a(*joins(0.0, A), told(1.0, A, JobFailed(3, Forward(0), "a bad batch")))
    assert (facts.state, facts.error) == (DeviceState.FAILED, "a bad batch")


def test_only_notes_on_what_is_wrong_with_a_device_are_errors() -> None:
    dropped = Note("peer dropped", A, "it spoke out of turn")
    assert of_a(update(1.0, A, "u", dropped)).error == "it spoke out of turn"
    assert of_a(update(1.0, A, "u", Note("update refused", A, "9 versions behind"))).error == ""


def test_what_each_device_has_contributed_is_counted() -> None:
    fleet = account(
        *joins(0.0, A, B),
        stepped(1.0, step(A, 0, part=0, parts=2)),  # half a batch is none yet
        stepped(1.1, step(A, 0, part=1, parts=2)),
        stepped(1.2, step(B, 0)),
        stepped(1.3, step(B, 1)),
        merged(2.0, merge((A, "u", 0.5), (B, "v", 0.5))),
        merged(2.1, merge((B, "w", 1.0))),
    )
    assert (fleet.batches, fleet.version) == (3, 2)
    assert [(f.batches, f.merged) for f in fleet.devices.values()] == [(1, 1), (2, 2)]


def test_it_is_known_when_the_training_began_and_how_good_it_is() -> None:
    fleet = account(*joins(0.0, A))
    assert (fleet.planning, fleet.began) == (False, None)
    fleet.observe(starts(0.5, SERVER, PlanRun(())))
    assert (fleet.planning, fleet.began) == (True, None)
    fleet.observe(planned(0.7))
    fleet.observe(told(3.0, SERVER, Evaluated(1, (("accuracy", 0.5), ("loss", 2.0)))))
    fleet.observe(told(4.0, SERVER, Evaluated(2, (("accuracy", 0.7), ("loss", 1.0)))))
    assert (fleet.began, fleet.measured["accuracy"]) == (0.7, [0.5, 0.7])
    assert fleet.measured["loss"] == [2.0, 1.0]


def test_a_model_sent_to_one_device_is_no_news_of_another() -> None:
    sent = told(1.0, SERVER, Connected(B, 1), Send(B, 1, GlobalModel(5, 0.0, DATA)))
    fleet = account(*joins(0.0, A, B), sent)
    assert (fleet.devices[A].version, fleet.devices[B].version) == (None, 5)
