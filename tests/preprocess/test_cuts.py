from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import map_tensors, tensors_of
from fedoptima.preprocess.cuts import cuttable

from .networks import every_network

NETWORKS = every_network()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("training", [True, False])
def test_two_parts_compose_to_the_whole_bit_for_bit_at_every_cut(name: str, training: bool) -> None:
    model, example = deepcopy(NETWORKS[name])
    model.train(training)
    blocks = cuttable(model, example)
    count = len(blocks.names)
    torch.manual_seed(3)
    expected = deepcopy(model)(example.clone())
    for cut in range(count + 1):
        pieces = [(0, cut), (cut, count)] if 0 < cut < count else [(0, count)]
        value: object = example.clone()
        torch.manual_seed(3)
        for piece in pieces:
            value = deepcopy(blocks.part(*piece))(value)
        assert torch.equal(value, expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_states_of_the_parts_are_a_partition_of_the_whole_models(name: str) -> None:
    model, example = NETWORKS[name]
    blocks = cuttable(model, example)
    whole = model.state_dict()
    for cut in range(1, len(blocks.names)):
        parts = [blocks.part(0, cut), blocks.part(cut, len(blocks.names))]
        for states in ([p.state_dict() for p in parts], [deepcopy(p).state_dict() for p in parts]):
            assert sorted([*states[0], *states[1]]) == sorted(whole)
            assert all(torch.equal(whole[k], v) for s in states for k, v in s.items())
        shared = {id(p) for part in parts for p in part.parameters()}
        assert shared == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("name", NETWORKS)
def test_no_part_writes_into_its_input(name: str) -> None:
    model, example = deepcopy(NETWORKS[name])
    blocks = cuttable(model, example)
    value: object = example.clone()
    for index in range(len(blocks.names)):
        entered = map_tensors(value, torch.clone)
        value = blocks.part(index, index + 1)(entered)
        assert all(tensor._version == 0 for tensor in tensors_of(entered))


@pytest.mark.parametrize("name", NETWORKS)
def test_looking_for_cuts_changes_nothing(name: str) -> None:
    model, example = deepcopy(NETWORKS[name])
    model.train()
    next(model.children()).eval()
    before, modes = deepcopy(model.state_dict()), [m.training for m in model.modules()]
    data, generator = example.clone(), torch.get_rng_state()
    cuttable(model, example)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(example, data)
    assert torch.equal(torch.get_rng_state(), generator)


def test_the_blocks_of_a_sequential_are_its_children() -> None:
    model, example = NETWORKS["vgg5"]
    assert cuttable(model, example).names == ("block1", "block2", "block3", "block4", "block5")


def test_a_residual_is_never_cut() -> None:
    model, example = NETWORKS["residual"]
    names = cuttable(model, example).names
    assert names == ("conv1", "layer1.0", "layer1.1", "layer2.0", "layer2.1", "fc")


class Inception(nn.Module):
    """Two branches over two convolutions in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 1)
        self.left = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1))
        self.right = nn.Conv2d(2, 2, 1)
        self.last = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        stem = self.stem(images)
        joined = torch.cat([self.left(stem), self.right(stem)], dim=1)
        return self.last(joined.mean((2, 3)))


def test_a_branch_is_never_cut() -> None:
    blocks = cuttable(Inception(), torch.rand(2, 1, 4, 4))
    assert len(blocks.names) == 3
    assert set(blocks.part(1, 2).state_dict()) == {
        f"{name}.{kind}" for name in ("left.0", "left.1", "right") for kind in ("weight", "bias")
    }


def test_a_child_that_works_in_place_stays_with_the_one_before() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    example = torch.randn(2, 4)
    assert cuttable(model, example).names == ("0+1", "2")


def test_children_that_share_a_parameter_stay_together() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared, nn.Linear(4, 2))
    blocks = cuttable(model, torch.rand(2, 4))
    assert blocks.names == ("0", "1+2+3", "4")
    assert torch.equal(blocks.part(0, 3)(torch.ones(1, 4)), model(torch.ones(1, 4)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 3)
        self.middle = nn.Linear(3, 3)

    def forward(self, values: Tensor) -> Tensor:
        return functional.linear(self.middle(self.encode(values)), self.encode.weight.t())


def test_layers_tied_in_a_graph_stay_together() -> None:
    assert cuttable(Tied(), torch.rand(2, 4)).names == ("encode",)


class Joined(nn.Module):
    """Two branches until both are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.middle, self.out = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, values: Tensor) -> Tensor:
        joined = torch.cat([self.a(values), self.b(values)], dim=1)
        return self.out(self.middle(joined).relu())


def test_where_a_module_is_no_end_of_a_block_the_blocks_are_numbered() -> None:
    with pytest.raises(
        ConfigError, match=r"after this module: .* by number: 1 \(a\), 2 \(middle\)"
    ):
        cuttable(Joined(), torch.rand(3, 4), "a")
    assert cuttable(Joined(), torch.rand(3, 4), "b").after("b") == 1


def test_a_block_of_several_children_may_be_named_as_it_is_shown() -> None:
    layers = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Linear(4, 2)
    model, example = nn.Sequential(*layers), torch.rand(3, 4)
    assert cuttable(model, example).names == ("0+1", "2", "3")
    assert cuttable(model, example, "0+1").after("0+1") == 1
    with pytest.raises(ConfigError, match="no module of this name"):
        cuttable(model, example, "0+2")


class WithConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.second(self.first(values) * torch.tensor([1.0, 2.0, 3.0]))


def test_a_constant_goes_with_its_block_but_not_into_its_state() -> None:
    model, example = WithConstant(), torch.rand(2, 3)
    blocks = cuttable(model, example)
    assert blocks.names == ("first", "second")
    first = deepcopy(deepcopy(blocks.part(0, 1)))
    assert sorted(first.state_dict()) == ["first.bias", "first.weight"]
    assert torch.equal(blocks.part(1, 2)(first(example)), model(example))


def test_a_model_of_one_layer_is_one_block() -> None:
    blocks = cuttable(nn.Linear(3, 2), torch.rand(2, 3))
    assert len(blocks.names) == 1
    assert sorted(blocks.part(0, 1).state_dict()) == ["bias", "weight"]


class Branching(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values if values.sum() > 0 else -values


class TwoInputs(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Branching(), r"torch.fx or torch.export .*nn.Sequential of blocks, or use a method"),
        (Branching(), r"test_cuts.py, line \d+: return values if values.sum\(\) > 0 else -values"),
        (TwoInputs(), r"torch.export .*missing 1 required positional argument"),
        (nn.Sequential(), "the model is empty"),
        (nn.Sequential(nn.LSTM(3, 3)), "the model returns tuple; it must return one tensor"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_with_a_way_out(
    model: nn.Module, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        cuttable(model, torch.rand(2, 3))


def test_data_that_do_not_fit_the_model_are_refused_by_the_block_they_break() -> None:
    model, _ = NETWORKS["vgg5"]
    with pytest.raises(ConfigError, match=r"block 'block4' failed on input of shape \(2, 64, 3"):
        cuttable(model, torch.rand(2, 1, 12, 12))


def test_a_part_the_model_does_not_have_is_refused() -> None:
    model, example = NETWORKS["vgg5"]
    with pytest.raises(ConfigError, match="the model has 5 blocks"):
        cuttable(model, example).part(2, 6)
