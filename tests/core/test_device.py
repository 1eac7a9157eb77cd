from __future__ import annotations

import pytest

from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Halt, Run
from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.events import Connected, JobDone, TimerFired
from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    ExportModel,
    Forward,
    FullStep,
    LoadModel,
    Prepare,
    SkipStep,
)
from fedoptima.core.messages import (
    ActivationBatch,
    Assignment,
    Failed,
    GradientBatch,
    Join,
    Message,
    ModelUpdate,
    ProgramSpec,
    Stop,
    TurnOn,
)
from fedoptima.core.serialization import freeze
from fedoptima.core.types import SERVER
from fedoptima.testing.toy import PLAN
from tests.support.bench import (
    DeviceBench,
    of,
    payload,
    sent,
)
from tests.support.bench import global_model as model
from tests.support.bench import joined_with as join
from tests.support.bench import pending_device as pending
from tests.support.bench import training_device as training
from tests.support.rows import AUXILIARY, DELTA, FULL, GRADIENT

# ---- the usual life ----------------------------------------------------------------------------


def test_a_new_device_says_what_it_is_and_brings_nothing() -> None:
    said = join(DeviceBench().connects())
    assert said == Join(0, 8, 1.0, 1.0, version=-1, training=False, pending=None)


def test_a_device_prepares_before_it_loads_its_first_model() -> None:
    bench = DeviceBench()
    bench.connects()
    bench.hears(Assignment(PLAN, FULL, 2))
    assert bench.job == Prepare(PLAN)
    assert bench.hears(model()) == []  # the engine is busy
    bench.done()
    assert bench.job == LoadModel(model().data, 0.25)
    bench.done()
    assert bench.job == FullStep(0)


def test_after_h_iterations_the_device_hands_in_what_it_trained_on() -> None:
    bench = training(FULL, version=5)
    bench.done(samples=4)
    bench.done(samples=3)
    assert bench.job == ExportModel(delta=False)
    ((to, update),) = sent(bench.done(), ModelUpdate)
    assert to == SERVER
    assert (update.version, update.trained) == (5, 7)
    assert bench.job is None


def test_a_delta_is_exported_where_the_program_says_so() -> None:
    bench = training(DELTA, iterations=1)
    bench.done()
    assert bench.job == ExportModel(delta=True)


def test_the_answer_starts_the_next_round_where_the_steps_left_off() -> None:
    bench = pending()
    bench.hears(model(1))
    bench.done()
    assert bench.job == FullStep(2)


def test_one_turn_on_is_good_for_one_batch() -> None:
    bench = training(AUXILIARY, iterations=3)
    bench.hears(TurnOn())
    assert sent(bench.done(), ActivationBatch)
    bench.done()  # AuxiliaryStep
    assert isinstance(bench.job, Forward)
    assert not sent(bench.done(), ActivationBatch)
    assert isinstance(bench.job, AuxiliaryStep)


def test_a_lean_device_counts_what_it_only_sent_apart_from_what_it_trained_on() -> None:
    bench = training(ProgramSpec("auxiliary", train_every=3), iterations=3)
    for step in (AuxiliaryStep(0), SkipStep(1), SkipStep(2)):
        bench.hears(TurnOn())
        assert sent(bench.done(), ActivationBatch)
        assert bench.job == step
        bench.done(samples=4)
    ((_, update),) = sent(bench.done(), ModelUpdate)
    assert (update.trained, update.forwarded, update.processed) == (4, 8, 12)


def test_a_lean_device_sends_what_it_kept_when_a_credit_comes() -> None:
    bench = training(ProgramSpec("auxiliary", train_every=2), iterations=3)
    assert not sent(bench.done(), ActivationBatch)  # kept
    assert bench.job == AuxiliaryStep(0)
    ((_, batch),) = sent(bench.hears(TurnOn()), ActivationBatch)
    assert batch.seq == 0
    bench.done()
    assert not sent(bench.done(), ActivationBatch)  # that credit is spent
    assert bench.job == SkipStep(1)
    bench.done()
    bench.done()
    assert bench.job == AuxiliaryStep(2)  # there is room for one


def test_a_gradient_continues_the_round() -> None:
    bench = training(GRADIENT, iterations=1)
    assert sent(bench.done(), ActivationBatch)
    assert bench.job is None
    bench.hears(GradientBatch(0, 0, payload("server/0/9")))
    assert bench.job == Backward(0, 0, payload("server/0/9"), True, 1)
    bench.done(samples=4)
    assert bench.job == ExportModel()


def test_stop_ends_the_device_and_it_is_deaf_afterwards() -> None:
    bench = training(FULL)
    assert bench.hears(Stop("enough")) == [Halt("enough")]
    assert bench.device.stopped
    assert bench.done() == []
    assert bench.hears(model(1)) == []


def test_a_diverged_device_says_so_and_stops() -> None:
    bench = training(FULL)
    effects = bench.fail("the loss is not a number", diverged=True)
    assert sent(effects, Failed) == [(SERVER, Failed("the loss is not a number", True))]
    assert effects[-1] == Halt("the loss is not a number", failed=True)


# ---- broken protocol ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bench", "message"),
    [
        (training(FULL), model(1)),
        (training(FULL), GradientBatch(0, 0, payload("x"))),
        (training(GRADIENT), GradientBatch(0, 0, payload("x"))),
        (pending(), GradientBatch(0, 0, payload("x"))),
        (pending(), Assignment("newer", ProgramSpec("telepathy"), 1)),
        (pending(), Join(0, 1, 1.0, 1.0)),
        (pending(), ActivationBatch(0, payload("x"))),
    ],
    ids=[
        "a model in a round",
        "a gradient without need",
        "a gradient too early",
        "a gradient after the round",
        "an unknown program",
        "a device's word",
        "activations",
    ],
)
def test_a_message_that_is_refused_leaves_the_device_as_it_was(
    bench: DeviceBench, message: Message
) -> None:
    before = freeze(bench.device)
    with pytest.raises(ProtocolViolation):
        bench.hears(message)
    assert freeze(bench.device) == before


def test_a_result_of_a_job_that_was_never_ordered_is_our_bug() -> None:
    bench = training(FULL)
    with pytest.raises(InvariantBroken):
        bench.tell(JobDone(99, FullStep(0), payload("x")))


def test_a_device_has_no_timers() -> None:
    with pytest.raises(InvariantBroken):
        DeviceBench().tell(TimerFired("credit"))


def test_broken_invariants_are_noticed() -> None:
    bench = pending()
    bench.device._pending = None
    with pytest.raises(InvariantBroken, match="pending"):
        bench.device.check()


def test_every_run_has_a_ticket_of_its_own() -> None:
    bench = DeviceBench(DeviceCore(samples=1, flops_per_second=1.0, bytes_per_second=1.0))
    bench.tell(Connected(SERVER, 1))
    bench.session = 1
    tickets = []
    for run in of(bench.hears(Assignment(PLAN, FULL, 1)), Run):
        tickets.append(run.ticket)
    bench.done()
    for run in of(bench.hears(model()), Run):
        tickets.append(run.ticket)
    for _ in range(3):
        tickets += [run.ticket for run in of(bench.done(), Run)]
    assert tickets == sorted(set(tickets))
    assert len(tickets) == 4
