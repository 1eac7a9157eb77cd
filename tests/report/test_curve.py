from __future__ import annotations

from fedoptima.core.effects import Evaluate, Note, Send
from fedoptima.core.events import Evaluated, JobDone, Received
from fedoptima.core.jobs import AuxiliaryStep, Forward, PlanRun, ServerStep
from fedoptima.core.messages import ENVELOPE_BYTES, GlobalModel, ModelUpdate, TurnOn
from fedoptima.core.types import SERVER
from fedoptima.report.curve import CourseAccount, Point
from fedoptima.trace.record import Record
from tests.report.stories import DATA, A, told


def course(*records: Record) -> CourseAccount:
    account = CourseAccount()
    for record in records:
        account.observe(record)
    return account


def test_an_evaluation_is_a_point_at_the_time_since_the_plan() -> None:
    account = course(
        told(2.0, SERVER, JobDone(1, PlanRun(()), DATA)),
        told(3.0, A, JobDone(1, AuxiliaryStep(0), DATA, samples=8)),
        told(4.0, SERVER, JobDone(2, ServerStep(A, 1, 0, DATA, 0.0), DATA, samples=5)),
        told(5.0, SERVER, JobDone(3, PlanRun(()), DATA), Evaluate(1, 0.5, 7)),
    )
    assert account.points == []
    account.observe(told(9.0, SERVER, Evaluated(1, (("accuracy", 0.25), ("loss", 1.5)))))
    assert account.points == [Point(9.0 - account.began, 0.5, 7, 8, 5, 0.25, 1.5)]
    assert account.epochs == 0.5


def test_a_dry_evaluation_is_a_point_without_figures() -> None:
    account = course(
        told(0.0, SERVER, JobDone(1, PlanRun(()), DATA), Evaluate(1, 1.0, 3)),
        told(1.0, SERVER, Evaluated(1, ())),
    )
    assert account.points == [Point(1.0, 1.0, 3, 0, 0, None, None)]


def test_samples_are_counted_where_they_are_trained_and_bytes_where_they_pass_the_server() -> None:
    account = course(
        told(0.0, A, JobDone(1, Forward(0), DATA)),
        told(0.0, A, JobDone(2, AuxiliaryStep(0), DATA, samples=8)),
        told(1.0, SERVER, Received(A, 1, ModelUpdate(0, 8, DATA)), Send(A, 1, TurnOn())),
        told(1.0, A, Received(SERVER, 1, GlobalModel(0, 0.0, DATA))),
        told(2.0, SERVER, Received(A, 1, ModelUpdate(0, 8, DATA)), Note("update refused", A)),
        told(2.0, SERVER, Received(A, 1, TurnOn()), Note("late batch dropped", A)),
    )
    assert account.device_samples == 8
    assert account.server_samples == 0
    assert account.bytes_up == 2 * (ENVELOPE_BYTES + 100) + ENVELOPE_BYTES
    assert account.bytes_down == ENVELOPE_BYTES
    assert (account.refused, account.late_batches) == (1, 1)
