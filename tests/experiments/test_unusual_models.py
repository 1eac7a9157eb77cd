"""Models whose numbers or gradients are of another kind: they are trained like any other."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedoptima
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.result import Result
from fedoptima.models.activation import call, tensors_of
from fedoptima.preprocess.cuts import cuttable

WORDS = torch.arange(60).view(12, 5) % 20
NUMBERS = torch.linspace(-1, 1, 96).view(12, 8)
LABELS = torch.arange(12) % 3


def readers(*, sparse: bool = False) -> nn.Sequential:
    words = nn.Embedding(20, 8, sparse=sparse)
    return nn.Sequential(words, nn.Flatten(), nn.Linear(40, 16), nn.ReLU(), nn.Linear(16, 3))


def trained(model: nn.Module, inputs: Tensor, method: object, **split: object) -> Result:
    """By one device, for two steps of plain gradient descent over all samples."""
    side = {"momentum": 0.0, "learning_rate": 0.1}
    return fedoptima.simulate(
        model=model,
        train=(inputs, LABELS),
        test=(inputs, LABELS),
        method=method,  # type: ignore[arg-type]
        split=split or None,
        data={"partition": {"kind": "iid"}},
        fleet={"server": {"gflops": 1.0}, "devices": [{"name": "d", "gflops": 0.01}]},
        training={"batch_size": 12, "iterations": 1, "device": side, "server": side},
        epochs=2,
    )


def two_steps(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    model = deepcopy(model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(model(inputs), LABELS).backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("auxiliary", ["default", "light"])
def test_an_auxiliary_network_has_the_precision_of_the_model(auxiliary: str) -> None:
    method = {"name": "fedoptima", "auxiliary": auxiliary}
    result = trained(readers().bfloat16(), WORDS, method)
    assert {tensor.dtype for tensor in result.weights.values()} == {torch.bfloat16}


def test_autocast_is_not_laid_over_a_model_that_is_in_bfloat16() -> None:
    with pytest.raises(ConfigError, match=r"'bf16'}: is for a model in float32, .* in bfloat16"):
        fedoptima.simulate(
            model=readers().bfloat16(),
            train=(WORDS, LABELS),
            test=(WORDS, LABELS),
            fleet={"server": {"gflops": 1.0}, "devices": [{"name": "d", "gflops": 0.01}]},
            training={"batch_size": 4, "precision": "bf16"},
            epochs=1,
        )


@pytest.mark.parametrize("method", ["fl", "splitfed"])
def test_an_embedding_may_have_sparse_gradients(method: str) -> None:
    torch.manual_seed(1)
    model = readers(sparse=True)
    result = trained(model, WORDS, method)
    for name, tensor in two_steps(model, WORDS).items():
        torch.testing.assert_close(result.weights[name], tensor)


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x)


class Back(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(torch.fft.irfft(x, n=8))
        return found


class Filter(nn.Module):
    """The same blocks, not as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.spectrum = nn.Linear(8, 8), Spectrum()
        self.second, self.back = nn.Linear(8, 8), Back()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.back(self.spectrum(self.second(self.first(x).relu())))
        return found


class Masks(Filter):
    """Weights are used on the complex numbers themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 5))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = self.spectrum(self.second(self.first(x).relu()))
        found: Tensor = self.back(spectrum * self.scale)
        return found


def filters() -> nn.Sequential:
    second = nn.Sequential(nn.Linear(8, 8), Spectrum())
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), second, Back())


@pytest.mark.parametrize("build", [filters, Filter])
def test_a_complex_tensor_never_crosses_a_cut(build: Callable[[], nn.Module]) -> None:
    cuts = cuttable(build(), NUMBERS)
    assert len(cuts.names) > 1
    for split in range(1, len(cuts.names)):
        assert not any(t.is_complex() for t in tensors_of(call(cuts.part(0, split), NUMBERS)))


def test_behind_a_complex_tensor_the_cut_is_where_it_is_real_again() -> None:
    torch.manual_seed(1)
    model = Filter()
    result = trained(model, NUMBERS, "splitfed", at="spectrum")
    for name, tensor in two_steps(model, NUMBERS).items():
        torch.testing.assert_close(result.weights[name], tensor)
    assert trained(model, NUMBERS, "fedoptima", at="spectrum").metrics["loss"] > 0


def test_why_there_is_no_cut_is_said_where_the_tensor_is_complex() -> None:
    with pytest.raises(ConfigError, match=r"a complex tensor would cross .*, and only real ones"):
        cuttable(Masks(), NUMBERS, "spectrum")
