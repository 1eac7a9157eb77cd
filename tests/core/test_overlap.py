"""A device that trains on while its update is merged."""

from __future__ import annotations

import pytest

from fedoptima.core.effects import Note, NoteKind
from fedoptima.core.errors import ConfigError, ProtocolViolation
from fedoptima.core.jobs import AuxiliaryStep, ExportModel, Forward, Merge, Rebase, ServerStep
from fedoptima.core.messages import (
    ActivationBatch,
    GlobalModel,
    HandIn,
    ModelUpdate,
    ProgramSpec,
    TurnOn,
)
from fedoptima.core.types import SERVER
from fedoptima.methods.fedoptima import fedoptima as build
from tests.support.bench import DeviceBench, of, payload, running_server, sent, update
from tests.support.bench import global_model as model
from tests.support.bench import joined_with as join
from tests.support.bench import training_device as training
from tests.support.rows import Options, fedoptima

OVERLAP = ProgramSpec("auxiliary", overlap=True)


def handed_in(version: int = 3) -> tuple[DeviceBench, ModelUpdate]:
    """A device of two iterations a round that has handed in and is in its next forward pass."""
    bench = training(OVERLAP, version=version)
    for _ in range(2):
        bench.done()
        bench.done(samples=4)
    assert bench.job == ExportModel(keep=True)
    ((_, made),) = sent(bench.done(), ModelUpdate)
    assert (made.version, made.trained) == (version, 8)
    assert bench.job == Forward(2)  # the next round has begun
    return bench, made


def test_the_answer_is_taken_between_two_iterations_and_the_round_goes_on() -> None:
    bench, _ = handed_in()
    assert bench.hears(model(7)) == []  # a backward pass with these weights is to come
    bench.done()
    assert bench.job == AuxiliaryStep(2)
    bench.done(samples=4)
    assert bench.job == Rebase(model(7).data, model(7).progress)
    bench.done()
    assert bench.job == Forward(3)
    bench.done()
    bench.done(samples=4)
    ((_, made),) = sent(bench.done(), ModelUpdate)
    assert (made.version, made.trained) == (7, 8)  # both iterations, and the answer's version


def test_without_an_answer_it_waits_at_the_end_of_the_round_and_hands_in_once_it_has_one() -> None:
    bench, _ = handed_in()
    for _ in range(4):
        bench.done(samples=4)
    assert bench.job is None
    bench.hears(model(5))
    assert bench.job == Rebase(model(5).data, model(5).progress)
    bench.done()
    assert bench.job == ExportModel(keep=True)


def test_a_model_that_answers_nothing_breaks_the_protocol() -> None:
    bench, _ = handed_in()
    bench.hears(model(4))
    with pytest.raises(ProtocolViolation, match="while training"):
        bench.hears(model(5))


def test_an_answer_that_has_come_outlives_the_connection() -> None:
    bench, _ = handed_in()
    bench.hears(model(4))
    bench.loses_connection()
    bench.done()
    bench.done()
    assert bench.job == Rebase(model(4).data, model(4).progress)


def test_back_after_a_lost_connection_it_says_that_it_trains_and_what_is_pending() -> None:
    bench, made = handed_in()
    bench.loses_connection()
    said = join(bench.connects())
    assert (said.training, said.pending) == (True, made.data.id)
    assert sent(bench.hears(HandIn()), ModelUpdate) == [(SERVER, made)]


@pytest.mark.parametrize("settled", [False, True])
def test_the_server_asks_for_a_pending_update_or_answers_one_that_it_has_used(
    settled: bool,
) -> None:
    bench = running_server(fedoptima(Options(overlap=True)), "a")
    made = update("a/0/9")
    if settled:
        bench.says("a", made)
        bench.done()  # merged and answered, and the answer is lost
    bench.leaves("a")
    effects = bench.joins("a", version=0, training=True, pending=made.data.id)
    assert bool(sent(effects, HandIn)) != settled
    assert bool(sent(effects, GlobalModel)) == settled


def test_a_refused_update_is_answered_and_the_device_goes_on_from_the_answer() -> None:
    server = running_server(fedoptima(Options(overlap=True, max_delay=0)), "a", "b")
    server.says("a", update("a/0/9"))
    server.done()
    effects = server.says("b", update("b/0/9"))  # of version 0, and 1 is the latest
    assert [note.kind for note in of(effects, Note)] == [NoteKind.UPDATE_REFUSED]
    ((_, answer),) = sent(effects, GlobalModel)
    bench, _ = handed_in(version=0)
    bench.hears(answer)
    bench.done()
    bench.done()
    assert bench.job == Rebase(answer.data, answer.progress)
    bench.done()
    assert bench.job == Forward(3)


def test_merges_and_batches_take_turns_where_nobody_waits_for_merges() -> None:
    bench = running_server(fedoptima(Options(overlap=True)), "a", "b", "c")
    for name in ("a", "b", "c"):
        bench.says(name, ActivationBatch(0, payload(f"{name}/0/1")))
        bench.says(name, update(f"{name}/0/2"))
    done = []
    while bench.job is not None:
        done.append(type(bench.job))
        bench.done()
    assert done == [ServerStep, Merge] * 3


def test_a_device_that_waits_for_gradients_cannot_train_on() -> None:
    with pytest.raises(ConfigError, match="waits for gradients"):
        build(2, overlap=True, auxiliary="none")


def test_a_credit_that_comes_while_the_model_is_rebased_is_not_lost() -> None:
    bench, _ = handed_in()
    bench.hears(model(4))
    bench.done()
    bench.done()
    bench.hears(TurnOn())
    bench.done()  # Rebase
    assert sent(bench.done(), ActivationBatch)
