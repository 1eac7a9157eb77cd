from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.jobs import AuxiliaryStep, Backward, ExportModel, Forward, FullStep
from fedoptima.core.messages import ActivationBatch, GradientBatch, ProgramSpec
from fedoptima.core.programs import (
    AuxiliaryLoss,
    FullModel,
    Order,
    Program,
    ServerGradient,
    build_program,
)
from fedoptima.core.serialization import freeze
from tests.support.bench import payload

DATA = payload("x/0/1")


def gradient(seq: int, part: int = 0) -> GradientBatch:
    return GradientBatch(seq, part, DATA)


def done(program: Program, order: Order, *, sender_on: bool = False) -> list[Order]:
    assert not isinstance(order, ActivationBatch)
    return program.done(order, DATA, sender_on=sender_on)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (ProgramSpec("full"), FullModel),
        (ProgramSpec("auxiliary"), AuxiliaryLoss),
        (ProgramSpec("gradient", 3), ServerGradient),
    ],
)
def test_a_program_is_built_from_its_description_and_goes_on_at_its_step(
    spec: ProgramSpec, kind: type
) -> None:
    program = build_program(spec, 7)
    assert isinstance(program, kind)
    assert program.step == 7


def test_an_unknown_program_is_the_peers_fault() -> None:
    with pytest.raises(ProtocolViolation, match="differ in version"):
        build_program(ProgramSpec("telepathy"), 0)


def test_the_full_model_takes_one_step_an_iteration() -> None:
    program = FullModel(5)
    assert program.start(2) == [FullStep(5)]
    assert done(program, FullStep(5)) == [FullStep(6)]
    assert not program.finished
    assert done(program, FullStep(6)) == []
    assert program.finished
    assert program.start(1) == [FullStep(7)]


def test_activations_go_out_before_the_auxiliary_step() -> None:
    program = AuxiliaryLoss(0)
    assert program.start(1) == [Forward(0)]
    assert done(program, Forward(0), sender_on=True) == [ActivationBatch(0, DATA), AuxiliaryStep(0)]
    assert done(program, AuxiliaryStep(0)) == []
    assert program.finished


def test_with_the_sender_off_the_device_learns_all_the_same() -> None:
    program = AuxiliaryLoss(0)
    program.start(2)
    assert done(program, Forward(0), sender_on=False) == [AuxiliaryStep(0)]
    assert done(program, AuxiliaryStep(0)) == [Forward(1)]


def steps(program: AuxiliaryLoss, credits: str) -> str:
    """A round, and how many credits come before the end of each forward pass.

    For each batch: T trained on, S not. All that is sent goes out once, in order.
    """
    taken, sent, on = "", list[int](), False
    first = program.step
    (order,) = program.start(len(credits))
    for count in credits:
        for _ in range(int(count)):
            kept = program.kept()
            sent += [kept.seq] if kept else []
            on = on or kept is None
        *offer, step = done(program, order, sender_on=on)
        assert bool(offer) == on
        sent += [batch.seq for batch in offer if isinstance(batch, ActivationBatch)]
        on = False
        taken += "T" if isinstance(step, AuxiliaryStep) else "S"
        (order,) = done(program, step) or [step]
    assert program.finished
    assert len(program._kept) < program.train_every
    sent += [batch.seq for batch in program._kept]
    program._kept.clear()
    assert sent == sorted(set(sent))
    missing = set(range(first, program.step)) - set(sent)
    assert all(taken[seq - first] == "T" for seq in missing)
    return taken


@pytest.mark.parametrize(
    ("every", "credits", "taken"),
    [
        (1, "1111", "TTTT"),
        (1, "0000", "TTTT"),
        (2, "1111", "TSTS"),
        (4, "1" * 9, "TSSSTSSST"),
        (4, "000000", "TSSTTT"),  # three wait for credits, and what cannot be kept is trained on
        (4, "00001111", "TSSTSSST"),
        (2, "0201", "TSTS"),
    ],
)
def test_a_lean_device_trains_on_one_of_n_batches_and_on_what_it_cannot_send(
    every: int, credits: str, taken: str
) -> None:
    program = build_program(ProgramSpec("auxiliary", train_every=every), 0)
    assert isinstance(program, AuxiliaryLoss)
    assert steps(program, credits) == taken


def test_every_round_of_a_lean_device_trains_on_something() -> None:
    program = AuxiliaryLoss(0, train_every=100)
    assert [steps(program, "111") for _ in range(3)] == ["TSS"] * 3
    assert program.step == 9


@given(st.integers(1, 6), st.text("012", min_size=1, max_size=40))
def test_no_batch_is_computed_for_nothing_and_never_n_in_a_row_without_training(
    every: int, credits: str
) -> None:
    taken = steps(AuxiliaryLoss(0, every), credits)
    assert taken[0] == "T"
    assert "S" * every not in taken


def test_a_server_that_does_not_know_lean_devices_gets_a_usual_one() -> None:
    program = build_program(ProgramSpec("auxiliary", train_every=0), 0)  # as the wire reads it
    assert isinstance(program, AuxiliaryLoss)
    assert steps(program, "101") == "TTT"


@pytest.mark.parametrize("program", [FullModel(0), AuxiliaryLoss(0)])
def test_a_gradient_for_a_device_that_waits_for_none_breaks_the_protocol(program: Program) -> None:
    program.start(1)
    with pytest.raises(ProtocolViolation):
        program.gradient(gradient(0))


@pytest.mark.parametrize("program", [AuxiliaryLoss(0), ServerGradient(0)])
def test_a_job_that_was_never_asked_for_is_our_bug(program: Program) -> None:
    program.start(1)
    with pytest.raises(InvariantBroken):
        program.done(ExportModel(), DATA, sender_on=True)


def test_one_part_waits_for_its_gradient_each_iteration() -> None:
    program = ServerGradient(0)
    assert program.start(2) == [Forward(0, 0, 1)]
    assert done(program, Forward(0, 0, 1)) == [ActivationBatch(0, DATA, 0, 1)]
    assert program.gradient(gradient(0)) == [Backward(0, 0, DATA, True, 1)]
    assert done(program, Backward(0, 0, DATA)) == [Forward(1, 0, 1)]
    done(program, Forward(1, 0, 1))
    program.gradient(gradient(1))
    assert done(program, Backward(1, 0, DATA)) == []
    assert program.finished
    assert program.step == 2


def test_parts_fill_the_pipeline_and_only_the_last_backward_pass_takes_the_step() -> None:
    program = ServerGradient(0, parts=3)
    assert program.start(1) == [Forward(0, 0, 3)]
    assert done(program, Forward(0, 0, 3)) == [ActivationBatch(0, DATA, 0, 3), Forward(0, 1, 3)]
    assert program.gradient(gradient(0, 0)) == []  # the engine is busy with part 1
    # Fill the pipeline before draining it: the third forward pass goes before the gradient.
    assert done(program, Forward(0, 1, 3)) == [ActivationBatch(0, DATA, 1, 3), Forward(0, 2, 3)]
    assert done(program, Forward(0, 2, 3)) == [
        ActivationBatch(0, DATA, 2, 3),
        Backward(0, 0, DATA, False, 3),
    ]
    assert done(program, Backward(0, 0, DATA)) == []  # nothing to do until the next gradient
    assert program.gradient(gradient(0, 1)) == [Backward(0, 1, DATA, False, 3)]
    assert program.gradient(gradient(0, 2)) == []
    assert done(program, Backward(0, 1, DATA)) == [Backward(0, 2, DATA, True, 3)]
    assert not program.finished
    assert done(program, Backward(0, 2, DATA)) == []
    assert program.finished


def waiting_for_part_1() -> ServerGradient:
    program = ServerGradient(4, parts=3)
    program.start(2)
    done(program, Forward(4, 0, 3))
    done(program, Forward(4, 1, 3))
    program.gradient(gradient(4, 0))
    return program


@pytest.mark.parametrize(
    ("seq", "part"),
    [(3, 1), (5, 1), (4, 0), (4, 2)],
    ids=["old", "future", "twice", "not sent yet"],
)
def test_a_gradient_nobody_waits_for_breaks_the_protocol_and_changes_nothing(
    seq: int, part: int
) -> None:
    program = waiting_for_part_1()
    before = freeze(program)
    with pytest.raises(ProtocolViolation, match="an unexpected gradient"):
        program.gradient(gradient(seq, part))
    assert freeze(program) == before


def test_a_second_gradient_during_the_backward_pass_breaks_the_protocol() -> None:
    program = ServerGradient(0)
    program.start(2)
    done(program, Forward(0, 0, 1))
    program.gradient(gradient(0))
    with pytest.raises(ProtocolViolation):
        program.gradient(gradient(0))


def test_a_gradient_that_comes_before_the_activations_went_out_breaks_the_protocol() -> None:
    program = ServerGradient(0)
    program.start(1)
    with pytest.raises(ProtocolViolation):
        program.gradient(gradient(0))
