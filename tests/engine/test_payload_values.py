"""Which values the engines let in from the network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.errors import NotFinite, ProtocolViolation
from fedoptima.core.jobs import Forward
from fedoptima.core.messages import ActivationBatch, TurnOn
from fedoptima.engine.payloads import unpack
from fedoptima.engine.value_ranges import Values
from tests.engine.bench import Bench, payload, samples
from tests.engine.masks import masked_bench
from tests.engine.sent import batch, handed_in, update


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e38, -1e38, 1e6])
def test_values_that_are_not_finite_or_absurdly_large_are_refused(
    bench: Bench, value: float
) -> None:
    hidden = torch.zeros(7, 8)
    hidden[3, 4] = value
    with pytest.raises(NotFinite, match=r"activations\.0 holds .*has diverged"):
        bench.server.admit(batch(**{"activations.0": hidden}))
    broken = update(bench)
    broken["0.0.bias"] = broken["0.0.bias"].clone()
    broken["0.0.bias"][2] = value
    with pytest.raises(NotFinite, match=r"0\.0\.bias holds"):
        bench.server.admit(handed_in(broken))


def test_large_values_that_training_may_come_to_are_admitted(bench: Bench) -> None:
    bench.server.admit(batch(**{"activations.0": torch.full((7, 8), -900.0)}))
    bench.server.admit(handed_in({**update(bench), "0.0.bias": torch.full((8,), 900.0)}))


class Buffered(nn.Module):
    """A first block with every kind of buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")] * 4))
        self.register_buffer("places", torch.arange(8))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.norm(self.linear(inputs)) + self.mask.exp() + self.places


@pytest.fixture
def buffered() -> Bench:
    return Bench(nn.Sequential(Buffered(), nn.Linear(8, 3)), samples())


def test_a_mask_that_the_first_model_has_stays_allowed(buffered: Bench) -> None:
    buffered.server.admit(handed_in(update(buffered)))


@pytest.mark.parametrize(
    ("name", "wrong", "complaint"),
    [
        ("0.norm.running_var", torch.full((8,), -1.0), "holds values outside 0 to 1e"),
        ("0.norm.running_var", torch.full((8,), float("inf")), "holds values outside"),
        ("0.norm.num_batches_tracked", torch.tensor(2**62), "num_batches_tracked holds"),
        ("0.norm.num_batches_tracked", torch.tensor(-1), "num_batches_tracked holds"),
        ("0.places", torch.arange(8) + 1, "holds values outside 0 to 7"),
        ("0.mask", torch.full((8,), float("-inf")), "where the plan's does not"),
        ("0.mask", torch.tensor([0.0, float("inf")] * 4), "where the plan's does not"),
        ("0.mask", torch.tensor([0.0, float("nan")] * 4), "where the plan's does not"),
    ],
)
def test_buffers_that_training_cannot_have_made_are_refused(
    buffered: Bench, name: str, wrong: Tensor, complaint: str
) -> None:
    with pytest.raises(ProtocolViolation, match=complaint):
        buffered.server.admit(handed_in({**update(buffered), name: wrong}))


def test_a_negative_variance_is_a_broken_protocol_and_not_a_divergence(buffered: Bench) -> None:
    wrong = {**update(buffered), "0.norm.running_var": torch.full((8,), -1.0)}
    with pytest.raises(ProtocolViolation) as raised:
        buffered.server.admit(handed_in(wrong))
    assert not isinstance(raised.value, NotFinite)


def test_infinity_is_allowed_where_the_plans_example_has_it() -> None:
    split = masked_bench(
        lambda inputs: torch.zeros_like(inputs[:, :1]).log(), lambda out, mask: out + mask.exp()
    )
    sent = split.at("d", Forward(0)).result
    split.server.admit(ActivationBatch(0, sent))
    wrong = {**unpack(sent), "activations.1": -unpack(sent)["activations.1"]}
    with pytest.raises(NotFinite):
        split.server.admit(ActivationBatch(0, payload(**wrong)))


def test_values_that_were_looked_at_before_are_judged_like_those_on_arrival(bench: Bench) -> None:
    broken = batch(**{"activations.0": torch.full((7, 8), float("nan"))})
    with pytest.raises(NotFinite, match=r"activations\.0 holds NaN"):
        bench.server.admit(broken, bench.server.inspect(broken))
    assert bench.server.inspect(TurnOn()) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_answer_is_the_same_whenever_it_is_asked_for() -> None:
    fine = {"activations.0": torch.ones(7, 8).cuda(), "labels": torch.arange(7).cuda()}
    broken = {**fine, "activations.0": fine["activations.0"] * float("nan")}
    looked_at = Values(fine), Values(broken)
    fine["activations.0"].mul_(float("nan"))  # queued behind the look
    assert looked_at[0].range("activations.0") == (1, 1)
    assert looked_at[0].range("labels") == (0, 6)
    assert not looked_at[1].are_finite("activations.0")
