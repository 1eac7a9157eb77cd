from __future__ import annotations

from fedoptima.analysis.curve import CourseAccount, Point, Throughput, throughput
from fedoptima.core.effects import Evaluate
from fedoptima.core.events import Evaluated, JobDone
from fedoptima.core.jobs import AuxiliaryStep, Forward, PlanRun, ServerStep
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record
from tests.analysis.stories import DATA, A, joins, planned, told


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
    figures = {"accuracy": 0.25, "loss": 1.5}
    assert account.points == [Point(9.0 - account.began, 0.5, 7, 8, 5, 0.25, 1.5, figures)]
    assert account.epochs == 0.5


def test_training_begins_with_the_plan_and_not_with_the_wait_for_devices() -> None:
    account = CourseAccount()
    assert account.seconds_at(11.4) == 0
    account.observe(told(11.4, SERVER, JobDone(1, PlanRun(()), DATA)))
    assert account.seconds_at(30.0) == 30.0 - 11.4


def test_an_answer_that_nobody_asked_for_is_no_point() -> None:
    course = CourseAccount()
    for _ in range(2):  # the trace of a run may come from anywhere
        course.observe(Record(1.0, SERVER, Evaluated(7, (("accuracy", 0.5),)), []))
    assert not course.points


def test_a_dry_evaluation_is_a_point_without_figures() -> None:
    account = course(
        told(0.0, SERVER, JobDone(1, PlanRun(()), DATA), Evaluate(1, 1.0, 3)),
        told(1.0, SERVER, Evaluated(1, ())),
    )
    assert account.points == [Point(1.0, 1.0, 3, 0, 0, None, None)]


def test_samples_are_counted_where_they_are_trained() -> None:
    account = course(
        told(0.0, A, JobDone(1, Forward(0), DATA)),
        told(0.0, A, JobDone(2, AuxiliaryStep(0), DATA, samples=8)),
        told(1.0, SERVER, JobDone(1, ServerStep(A, 1, 0, DATA, 0.0), DATA, samples=5)),
        told(1.0, A, JobDone(3, AuxiliaryStep(1), DATA, samples=3)),
    )
    assert account.device_samples == 11
    assert account.server_samples == 5


def test_seconds_run_from_the_plan_and_not_before() -> None:
    account = course(*joins(1.0, A))
    assert account.seconds == 1.0
    account.observe(planned(4.0))
    assert account.seconds == 0.0
    account.observe(told(9.0, A, JobDone(1, Forward(0), DATA)))
    assert account.seconds == 5.0


def test_throughput_is_samples_per_second_and_nothing_before_time_has_passed() -> None:
    assert throughput(30, 10, 5.0) == Throughput(device=6.0, server=2.0)
    assert throughput(30, 10, 0.0) == Throughput(0.0, 0.0)
