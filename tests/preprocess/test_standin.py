"""Models of which no graph can be made, cut behind a module that the user names."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import call, tensors_of
from fedoptima.preprocess.cuts import Cuttable, cuttable
from fedoptima.preprocess.profile import profile
from fedoptima.preprocess.standin import StandInSegments

from .user_models import PackedGruClassifier, words


class ByValues(nn.Module):
    """Decides by the values of the data, has tensors of its own, writes in place."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.rand(1, 4))
        self.shift = nn.Parameter(torch.rand(3))
        self.register_buffer("scale", torch.tensor(2.0))
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)])
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, values: Tensor) -> Tensor:
        values = values + self.token
        if values.sum() > 0:
            values = values * self.scale
        values = functional.dropout(self.layers[0](values), 0.5, self.training)
        values = functional.relu_(self.layers[1](values))
        return self.head(self.norm(self.layers[2](values))) + self.shift


def cases() -> dict[str, tuple[nn.Module, Tensor, str]]:
    torch.manual_seed(2)
    return {
        "gru": (PackedGruClassifier(), words(5), "gru"),
        "hidden": (PackedGruClassifier(), words(5), "hidden"),
        "by values": (ByValues(), torch.randn(5, 4), "layers.1"),
    }


CASES = cases()


def parts_of(name: str) -> tuple[nn.Module, Cuttable, list[nn.Module]]:
    model, data, at = CASES[name]
    blocks = cuttable(model, data[:2], at)
    assert isinstance(blocks.segments, StandInSegments)
    assert blocks.after(at) == 1
    return model, blocks, deepcopy([blocks.part(0, 1), blocks.part(1, 2)])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("training", [True, False])
def test_two_parts_compose_to_the_whole_and_have_its_gradients(name: str, training: bool) -> None:
    model, _, parts = parts_of(name)
    data = CASES[name][1]
    for count in (3, 2, 5):
        whole, fresh = deepcopy(model).train(training), deepcopy(parts)
        torch.manual_seed(3)
        expected = call(whole, data[:count])
        torch.manual_seed(3)
        value: object = data[:count]
        for part in fresh:
            value = call(part.train(training), value)
            assert all(len(tensor) == count for tensor in tensors_of(value))
        assert torch.equal(value, expected)  # type: ignore[arg-type]
        expected.square().sum().backward()  # type: ignore[attr-defined]
        value.square().sum().backward()  # type: ignore[attr-defined]
        wanted = {key: parameter.grad for key, parameter in whole.named_parameters()}
        for part in fresh:
            for key, parameter in part.named_parameters():
                assert torch.equal(parameter.grad, wanted[key])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_the_states_of_the_parts_are_a_partition_of_the_whole_models(name: str) -> None:
    model, blocks, copies = parts_of(name)
    for parts in ([blocks.part(0, 1), blocks.part(1, 2)], copies):
        names = [key for part in parts for key in part.state_dict()]
        assert sorted(names) == sorted(model.state_dict())


def test_only_what_is_used_behind_the_cut_crosses_it_samples_first() -> None:
    _, _, (device, _) = parts_of("gru")
    assert [tuple(t.shape) for t in tensors_of(call(device, words(4)))] == [(4, 1, 12)]


def test_the_work_of_the_stand_ins_is_not_counted() -> None:
    _, blocks, _ = parts_of("gru")
    device, server = profile(blocks, words(2)).blocks
    assert device.forward_flops > 1000
    assert server.forward_flops == 2 * (12 * 12 + 12 * 3)


def test_what_is_used_around_the_named_module_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'embedding'.*values that were computed before it"):
        cuttable(PackedGruClassifier(), words(2), "embedding")


def test_without_a_name_the_line_that_prevents_a_graph_is_named() -> None:
    with pytest.raises(ConfigError, match=r"user_models.py, line \d+: .*self.gru\(packed\)"):
        cuttable(PackedGruClassifier(), words(2))
    with pytest.raises(ConfigError, match=r"test_standin.py, line \d+: if values.sum\(\) > 0:"):
        cuttable(ByValues(), torch.randn(2, 4))


class Again(ByValues):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) + self.layers[0](values * float(values.sum() > 0)).sum()


def test_a_module_that_both_sides_use_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"both sides use 'layers\.0'"):
        cuttable(Again(), torch.randn(2, 4), "layers.1")
