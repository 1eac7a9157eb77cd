"""A device slowed to a stated speed, on a clock that only moves when somebody works or waits."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from fedoptima.core.errors import ConfigError, ProtocolViolation, TrainingDiverged
from fedoptima.core.jobs import ExportModel, Forward, FullStep, Job, LoadModel, Prepare
from fedoptima.core.machine import Outcome
from fedoptima.core.messages import Message, TurnOn
from fedoptima.core.plan import BlockProfile, Plan
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.preprocess.job_costs import Rates
from fedoptima.runtime.device.paced_engine import PacedEngine

DATA = Payload(PayloadId("x"), 0)
# At 1000 FLOP/s and 10 samples in a batch: a step is 3 s, a forward pass 1 s, a model 0.05 s.
PLAN = Plan((BlockProfile("a", 100, 200, 4, 4, 50, 200),), 1, "none", None, "paper", ())
PREPARE = Prepare(PLAN.to_json())
SPEED = Rates(1000.0)


class World:
    """An engine on a machine that takes ``work`` seconds for a job, and wakes up ``late``."""

    def __init__(self, *, work: float = 0.0, late: float = 0.0, rates: Rates = SPEED) -> None:
        self.now = 100.0
        self.work = work
        self.late = late
        self.waits: list[float] = []
        self.engine = PacedEngine(
            self,
            NodeId("pi"),
            rates=rates,
            batch=10,
            clock=lambda: self.now,
            wait=self.wait,
        )

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        self.now += self.work
        return Outcome(Payload(result, 7), samples=10)

    def admit(self, message: Message) -> None:
        raise ProtocolViolation(type(message).__name__)

    def receive(self, message: Message) -> Message:
        return message

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds + self.late

    def run(self, job: Job) -> float:
        """How long a job lasts."""
        began = self.now
        self.engine.execute(job, PayloadId("r"))
        return self.now - began


def prepared(*, work: float = 0.0, late: float = 0.0) -> World:
    world = World(work=work, late=late)
    world.run(PREPARE)
    world.waits.clear()
    return world


@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        (FullStep(0), 3.0),
        (Forward(0), 1.0),
        (Forward(0, 1, 4), 0.25),
        (LoadModel(DATA, 0.0), 0.05),
        (ExportModel(), 0.05),
    ],
)
def test_a_job_lasts_as_long_as_its_flops_take_at_the_stated_speed(
    job: Job, seconds: float
) -> None:
    assert prepared().run(job) == pytest.approx(seconds)


def test_a_job_also_pays_for_the_bytes_it_moves_and_its_overhead() -> None:
    world = World(rates=Rates(1000.0, memory=100.0, overhead=0.5))
    moving = replace(PLAN.blocks[0], forward_moved=20)
    world.run(Prepare(Plan((moving,), 1, "none", None, "paper", ()).to_json()))
    # 20 bytes for each of 10 samples, and 200 bytes of weights
    assert world.run(Forward(0)) == pytest.approx(1.0 + (20 * 10 + 200) / 100 + 0.5)


def test_what_the_work_itself_took_is_not_waited_for_again() -> None:
    world = prepared(work=0.4)
    assert world.run(FullStep(0)) == pytest.approx(3.0)
    assert world.waits == [pytest.approx(2.6)]


def test_before_there_is_a_plan_nothing_is_paced() -> None:
    world = World()
    assert world.run(FullStep(0)) == 0.0
    assert world.run(PREPARE) == 0.0
    assert world.run(FullStep(0)) == pytest.approx(3.0)


def test_a_new_plan_counts_from_its_prepare_on() -> None:
    world = prepared()
    twice = Plan(PLAN.blocks * 2, 2, "none", None, "paper", ())
    world.run(Prepare(twice.to_json()))
    assert world.run(FullStep(0)) == pytest.approx(6.0)


def test_the_outcome_is_the_engines_own() -> None:
    world = prepared()
    assert world.engine.execute(FullStep(0), PayloadId("r")) == Outcome(
        Payload(PayloadId("r"), 7), samples=10
    )


def test_late_awakenings_do_not_add_up() -> None:
    world = prepared(late=0.02)
    began = world.now
    for step in range(100):
        world.run(FullStep(step))
        world.now += 0.003  # through the event loop and back
    assert world.now - began == pytest.approx(300.0, abs=0.05)


def test_a_job_that_was_waited_for_begins_when_it_comes() -> None:
    world = prepared(late=0.02)
    world.run(FullStep(0))
    world.now += 0.006  # longer than a way through the event loop: the device had nothing to do
    began = world.now
    world.run(FullStep(1))
    assert world.now - began == pytest.approx(3.02)


def test_a_long_hiccup_of_the_machine_is_not_made_good_by_a_sprint() -> None:
    world = prepared(work=10.0)
    world.run(FullStep(0))  # 7 s too late
    world.work = 0.0
    assert world.run(FullStep(1)) == pytest.approx(2.9)
    assert world.run(FullStep(2)) == pytest.approx(3.0)


def test_a_wait_that_is_cut_short_ends_the_job_at_once() -> None:
    stop = threading.Event()
    stop.set()
    engine = PacedEngine(World(), NodeId("pi"), rates=Rates(1e-6), batch=10, wait=stop.wait)
    engine.execute(PREPARE, PayloadId("r"))
    engine.execute(FullStep(0), PayloadId("r"))  # would take an age


def test_a_job_that_fails_is_not_waited_for() -> None:
    class Diverging(World):
        def execute(self, job: Job, result: PayloadId) -> Outcome:
            if isinstance(job, FullStep):
                raise TrainingDiverged("no number")
            return super().execute(job, result)

    world = Diverging()
    world.run(PREPARE)
    with pytest.raises(TrainingDiverged):
        world.run(FullStep(0))
    assert world.waits == []


def test_messages_go_to_the_engine() -> None:
    world = World()
    with pytest.raises(ProtocolViolation, match="TurnOn"):
        world.engine.admit(TurnOn())
    message = TurnOn()
    assert world.engine.receive(message) is message


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "fedoptima.device"]


def test_a_machine_too_slow_for_the_stated_speed_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = prepared(work=6.0)
    for step in range(49):
        world.run(FullStep(step))
    assert warnings(caplog) == []
    for step in range(200):
        world.run(FullStep(step))
    assert warnings(caplog) == [
        "pi is to compute at 1e-06 GFLOP/s but reaches 5e-07 here: state a lower speed, or run "
        "fewer devices on this machine"
    ]


@pytest.mark.parametrize("work", [0.1, 2.9, 3.3])
def test_a_machine_that_keeps_the_speed_or_nearly_so_is_not_reported(
    caplog: pytest.LogCaptureFixture, work: float
) -> None:
    caplog.set_level(logging.DEBUG)
    world = prepared(work=work)
    for step in range(120):
        world.run(FullStep(step))
    assert warnings(caplog) == []


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        PacedEngine(World(), NodeId("pi"), rates=Rates(speed), batch=10)
