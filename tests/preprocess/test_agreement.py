"""What a graph of a model does not show: it is noticed, and another way of cutting is taken."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedoptima
from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import call
from fedoptima.preprocess.agreement import difference
from fedoptima.preprocess.cuts import cuttable
from fedoptima.preprocess.exported import ExportSegments
from fedoptima.preprocess.graph import GraphSegments

EXAMPLE = torch.linspace(-1, 1, 12).view(3, 4)


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.out(self.b(self.a(values).tanh()).tanh())


class ReversesGradients(Plain):
    def forward(self, values: Tensor) -> Tensor:
        reversed_: Tensor = _Reversed.apply(self.a(values).tanh())
        return self.out(self.b(reversed_).tanh())


class HoldsOn(Plain):
    """The first layer is run, but not trained."""

    def forward(self, values: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = self.a(values).tanh()
        return self.out(self.b(hidden).tanh())


class HalfPrecision(Plain):
    def forward(self, values: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.b(self.a(values).tanh()).tanh()
        return self.out(hidden.float())


class FrozenStatistics(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def train(self, mode: bool = True) -> FrozenStatistics:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, values: Tensor) -> Tensor:
        return self.out(self.b(self.norm(self.a(values))).tanh())


class Counts(Plain):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(values)


class Noisy(Plain):
    def forward(self, values: Tensor) -> Tensor:
        return self.out(self.b(self.a(values).tanh() + torch.rand(4)).tanh())


@pytest.mark.parametrize(
    "build", [HoldsOn, HalfPrecision, FrozenStatistics, Counts, Noisy], ids=lambda b: b.__name__
)
def test_what_torch_fx_would_lose_is_kept_by_another_way(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    model = build()
    traced = GraphSegments(model, EXAMPLE)
    assert difference(model, traced.part(0, len(traced)), EXAMPLE)
    cuts = cuttable(model, EXAMPLE)
    assert isinstance(cuts.segments, ExportSegments)
    assert len(cuts.names) > 1
    assert difference(model, cuts.part(0, len(cuts.names)), EXAMPLE) is None


def test_a_backward_pass_of_its_own_is_not_lost() -> None:
    torch.manual_seed(1)
    model = ReversesGradients()
    with pytest.raises(ConfigError, match=r"another gradient of 'a.weight', in training\).*split"):
        cuttable(model, EXAMPLE)
    cuts = cuttable(model, EXAMPLE, "b")  # by the model's own forward
    whole, device, server = deepcopy(model), cuts.part(0, 1), cuts.part(1, 2)
    whole(EXAMPLE).sum().backward()
    call(server, call(device, EXAMPLE)).sum().backward()  # type: ignore[attr-defined]
    gradient = dict(device.named_parameters())["a.weight"].grad
    assert gradient is not None
    assert whole.a.weight.grad is not None
    assert torch.equal(gradient, whole.a.weight.grad)


def test_a_model_without_surprises_is_traced_as_before() -> None:
    assert isinstance(cuttable(Plain(), EXAMPLE).segments, GraphSegments)


def test_a_model_that_never_does_the_same_twice_is_not_refused() -> None:
    class Unsteady(Plain):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values) + id(object()) % 997 + next(ticks)

    ticks = iter(range(10**6))
    model = Unsteady()
    assert difference(model, model, EXAMPLE) is None


def test_tracing_leaves_the_models_buffers_as_they_were() -> None:
    model = Counts()
    cuttable(model, EXAMPLE, quick=True)
    assert model.calls == 0


def test_a_device_side_without_gradients_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(ConfigError, match="devices have nothing to train"):
        fedoptima.simulate(
            model=HoldsOn(),
            train=(EXAMPLE, torch.tensor([0, 1, 0])),
            test=(EXAMPLE, torch.tensor([0, 1, 0])),
            method="splitfed",
            split={"at": 1},
            fleet={"server": {"gflops": 1.0}, "devices": [{"name": "d", "gflops": 1.0}]},
            epochs=1,
        )


class TimeFirst(nn.Module):
    """Behind the embedding the first dimension is the time's, not the samples'."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.lstm = nn.LSTM(4, 4)
        self.hidden, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(words).transpose(0, 1))
        return self.out(self.hidden(states[-1]).tanh())


@pytest.mark.parametrize("length", [2, 3, 5])  # also as many words as samples
def test_a_cut_is_never_where_the_samples_do_not_come_first(length: int) -> None:
    words = torch.arange(3 * length).view(3, length) % 9
    cuts = cuttable(TimeFirst(), words)
    assert len(cuts.names) > 1
    for split in range(1, len(cuts.names)):
        for rows in (2, 3):
            sent = call(cuts.part(0, split), words[:rows])
            assert isinstance(sent, Tensor)
            assert sent.shape[0] == rows


class Masked(Plain):
    """Two buffers as transformers have them: -inf above the diagonal, and one that is expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("places", torch.zeros(4).expand(3, -1), persistent=False)
        self.register_buffer("calls", torch.zeros(()))


def test_infinite_numbers_in_a_buffer_hide_no_difference() -> None:
    model = Masked()
    other = deepcopy(model)
    other.calls += 1
    assert difference(model, other, EXAMPLE) == "another buffer 'calls', in training"


def test_a_buffer_that_cannot_be_written_to_is_left_as_it_is() -> None:
    assert len(cuttable(Masked(), EXAMPLE).names) > 1


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 2)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = self.out(self.inner(self.first(values)))
        return output


def test_a_model_that_has_changed_is_tried_out_again() -> None:
    torch.manual_seed(1)
    model = Nested()
    fleet = {"server": {"gflops": 1.0}, "devices": [{"name": "one", "gflops": 1.0}]}
    data = (torch.randn(20, 4), torch.randint(0, 2, (20,)))
    hook = model.inner.register_full_backward_hook(lambda _, gradients, __: (gradients[0] * 2,))
    with pytest.raises(ConfigError, match="would not learn what it learns whole"):
        cuttable(model, EXAMPLE)
    hook.remove()
    fedoptima.simulate(model=model, train=data, test=data, fleet=fleet, epochs=1)
