"""A step that is bad leaves nothing behind, whoever asks whether it is."""

from __future__ import annotations

import pytest
import torch

from fedoptima.engine.undo import Undo

CPU = torch.device("cpu")


def buffers() -> list[torch.Tensor]:
    return [torch.ones(2, 3), torch.tensor(4), torch.full((3,), 2.0)]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_undoes_the_step_and_counts_as_nothing(loss: float) -> None:
    undo = Undo([], CPU, static=False)
    assert undo.note_loss(torch.tensor(loss)) == 0
    assert undo.note_loss(torch.tensor(0.5)) == 0.5
    assert [float(flag) for flag in undo.judge([torch.ones(2)])] == [1.0, 1.0]
    assert [float(flag) for flag in undo.judge([torch.ones(2)])] == [0.0, 0.0]  # the next step


def test_a_batch_that_is_left_out_is_no_divergence() -> None:
    undo = Undo([], CPU, static=False)
    undo.leave_out(torch.tensor(True))
    undo.leave_out(torch.tensor(True))  # of two parts: a fused optimiser knows 0 and 1 only
    assert [float(flag) for flag in undo.judge([torch.ones(2)])] == [1.0, 0.0]


@pytest.mark.parametrize("loss", [0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("gradient", [1.0, float("nan"), -float("inf")])
@pytest.mark.parametrize("left_out", [False, True])
def test_a_step_is_judged_alike_at_once_and_later(
    loss: float, gradient: float, left_out: bool
) -> None:
    later, now = Undo([], CPU, static=False), Undo([], CPU, static=False)
    later.note_loss(torch.tensor(loss))
    assert now.read_loss(torch.tensor(loss)) == (0.5 if loss == 0.5 else 0.0)
    assert now.read_loss(torch.tensor(0.5)) == 0.5  # which does not make it good again
    for undo in (later, now):
        if left_out:
            undo.leave_out(torch.tensor(True))
    gradients = [torch.ones(2), torch.tensor([1.0, gradient])]
    assert now.judge_now(gradients) == tuple(bool(flag) for flag in later.judge(gradients))
    assert now.judge_now([torch.ones(2)]) == (False, False)  # the next step


@pytest.mark.parametrize("undone", [0.0, 1.0])
def test_buffers_of_every_type_are_as_they_were_if_the_step_is_undone(undone: float) -> None:
    own = buffers()
    undo = Undo(own, CPU, static=True)
    undo.begin()
    for buffer in own:
        buffer.mul_(3)
    own[2][0] = float("nan")
    undo.put_back(torch.tensor(undone))
    if undone:
        assert all(torch.equal(now, then) for now, then in zip(own, buffers(), strict=True))
    else:
        assert own[1] == 12
        assert own[2].isnan().any()


def test_between_two_parts_of_a_mini_batch_it_is_saved_and_restored() -> None:
    own = buffers()
    undo = Undo(own, CPU, static=False)
    undo.begin()
    own[0].zero_()
    undo.note_loss(torch.tensor(float("nan")))
    other = Undo(own, CPU, static=False)
    other.restore(undo.save())
    other.put_back()
    assert torch.equal(own[0], torch.ones(2, 3))
    assert [float(flag) for flag in other.judge([torch.ones(2)])] == [1.0, 1.0]
