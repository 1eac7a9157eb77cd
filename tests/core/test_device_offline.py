"""A device outlives its connection, its process, and the server's plan."""

from __future__ import annotations

import pytest

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.events import Rejected
from fedoptima.core.jobs import (
    ExportModel,
    Forward,
    FullStep,
    LoadModel,
    Prepare,
)
from fedoptima.core.messages import (
    ActivationBatch,
    Assignment,
    GradientBatch,
    HandIn,
    Join,
    ModelUpdate,
    TurnOn,
)
from fedoptima.core.types import SERVER
from fedoptima.testing.toy import PLAN
from tests.support.bench import (
    DeviceBench,
    payload,
    sent,
)
from tests.support.bench import global_model as model
from tests.support.bench import joined_with as join
from tests.support.bench import pending_device as pending
from tests.support.bench import training_device as training
from tests.support.rows import AUXILIARY, FULL, GRADIENT

# ---- without a connection ----------------------------------------------------------------------


def test_training_goes_on_offline_and_is_handed_in_with_the_version_it_began_with() -> None:
    bench = training(FULL, version=3)
    bench.loses_connection()
    assert bench.job == FullStep(0)
    bench.done(samples=4)
    said = join(bench.connects())
    assert said.training
    assert (said.version, said.pending) == (3, None)
    bench.hears(Assignment(PLAN, FULL, 2))  # the same: go on as it was
    bench.done(samples=4)
    ((_, update),) = sent(bench.done(), ModelUpdate)
    assert (update.version, update.trained) == (3, 8)


def test_an_update_finished_offline_waits_until_it_is_asked_for() -> None:
    bench = training(FULL)
    bench.loses_connection()
    bench.done()
    bench.done()
    assert bench.done() == []  # exported, but there is nobody to send it to
    said = join(bench.connects())
    assert not said.training
    assert said.pending is not None
    ((_, update),) = sent(bench.hears(HandIn()), ModelUpdate)
    assert update.data.id == said.pending


def test_an_update_stays_pending_until_a_model_answers_it() -> None:
    bench = pending()
    for _ in range(2):
        bench.loses_connection()
        assert join(bench.connects()).pending is not None
    bench.hears(model(1))
    bench.loses_connection()
    assert join(bench.connects()).pending is None


def test_a_model_that_was_not_loaded_dies_with_its_session() -> None:
    bench = DeviceBench()
    bench.connects()
    bench.hears(Assignment(PLAN, FULL, 2))
    bench.hears(model())  # waits for the engine
    bench.loses_connection()
    bench.done()
    assert bench.job is None
    said = join(bench.connects())
    assert not said.training
    assert said.version == -1


def test_credits_die_with_their_session() -> None:
    bench = training(AUXILIARY)
    bench.hears(TurnOn())
    bench.loses_connection()
    bench.connects()
    assert not sent(bench.done(), ActivationBatch)


def test_a_gradient_program_abandons_its_round_and_does_not_repeat_its_data() -> None:
    bench = training(GRADIENT)
    bench.done()  # the activations of step 0 are out
    bench.loses_connection()
    said = join(bench.connects())
    assert not said.training
    assert said.pending is None
    bench.hears(Assignment(PLAN, GRADIENT, 2))
    bench.hears(model(1))
    bench.done()
    assert bench.job == Forward(1, 0, 1)


def test_the_last_job_of_an_abandoned_round_delays_the_new_one_and_counts_for_nothing() -> None:
    bench = training(GRADIENT, iterations=1)
    bench.loses_connection()  # in the middle of a forward pass
    bench.connects()
    bench.hears(Assignment(PLAN, GRADIENT, 1))
    bench.hears(model(1))
    assert bench.job == Forward(0, 0, 1)
    assert not sent(bench.done(samples=99), ActivationBatch)
    assert isinstance(bench.job, LoadModel)
    bench.done()
    bench.done()
    bench.hears(GradientBatch(1, 0, payload("server/0/9")))
    bench.done(samples=4)
    ((_, update),) = sent(bench.done(), ModelUpdate)
    assert update.trained == 4


def test_a_gradient_program_that_lost_the_connection_while_handing_in_brings_nothing() -> None:
    bench = training(GRADIENT, iterations=1)
    bench.done()
    bench.hears(GradientBatch(0, 0, payload("server/0/9")))
    bench.done()
    bench.loses_connection()  # while exporting
    assert isinstance(bench.job, ExportModel)
    assert bench.done() == []
    assert join(bench.connects()).pending is None


def test_a_new_connection_ends_the_old_one_even_if_nobody_said_so() -> None:
    bench = training(GRADIENT)
    bench.hears(TurnOn())
    said = join(bench.connects())  # no Disconnected before it
    assert not said.training
    bench.hears(model(1))
    assert not sent(bench.done(), ActivationBatch)
    assert isinstance(bench.job, LoadModel)


# ---- a process that starts anew ----------------------------------------------------------------


def test_a_restarted_device_remembers_its_step_and_nothing_else() -> None:
    bench = training(FULL)
    bench.done()
    restarted = DeviceBench(bench.device.restarted())
    said = join(restarted.connects())
    assert said == Join(1, 8, 1.0, 1.0, step=1)
    restarted.assigned(FULL)
    restarted.hears(model(4))
    restarted.done()
    assert restarted.job == FullStep(1)


def test_a_device_restarted_before_its_first_assignment_keeps_its_step() -> None:
    bench = training(FULL)
    bench.done()
    twice = bench.device.restarted().restarted()
    assert (twice.step, twice.incarnation) == (1, 2)


# ---- another server, another plan --------------------------------------------------------------


def test_a_new_assignment_ends_the_old_work_and_the_server_is_told_again() -> None:
    bench = training(FULL)
    bench.loses_connection()
    assert join(bench.connects()).training
    again = bench.hears(Assignment("another plan", FULL, 2))
    assert not join(again).training
    bench.hears(model(0))
    bench.done()  # the step of the old round
    assert bench.job == Prepare("another plan")
    bench.done()
    assert isinstance(bench.job, LoadModel)


def test_an_update_given_up_for_a_new_assignment_is_not_handed_in() -> None:
    bench = pending()
    bench.loses_connection()
    assert join(bench.connects()).pending is not None
    assert join(bench.hears(Assignment("another plan", FULL, 2))).pending is None
    assert bench.hears(HandIn()) == []  # sent before the server could know


def test_an_idle_device_takes_a_new_assignment_without_another_word() -> None:
    bench = DeviceBench()
    bench.connects()
    assert not sent(bench.hears(Assignment(PLAN, FULL, 2)), Join)


def test_a_device_is_to_drop_a_server_whose_message_was_rejected() -> None:
    bench = training(FULL)
    with pytest.raises(ProtocolViolation, match="a wrong shape"):
        bench.tell(Rejected(SERVER, bench.session, "a wrong shape"))
    assert bench.tell(Rejected(SERVER, bench.session - 1, "in a session that is over")) == []
