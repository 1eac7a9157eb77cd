"""Models that torch.fx cannot trace, cut at modules in graphs that torch.export makes."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import call, is_activation, map_tensors, tensors_of
from fedoptima.preprocess.auxiliary import build_auxiliary
from fedoptima.preprocess.cuts import Cuttable, cuttable
from fedoptima.preprocess.export import exported
from fedoptima.preprocess.exported import ExportedPart, ExportSegments

from .user_models import (
    Efficient,
    LstmClassifier,
    UNet,
    bert,
    images,
    vision_transformer,
    words,
    words_and_mask,
)

Inputs = Callable[[int], object]
CASES: dict[str, tuple[Callable[[], nn.Module], Inputs, str]] = {
    "bert": (bert, words_and_mask, "bert.encoder.layer.0"),
    "vit": (vision_transformer, images, "vit.layers.0"),
    "unet": (UNet, images, "down2"),
    "efficient": (Efficient, images, "blocks.1"),
    "lstm": (LstmClassifier, words, "lstm"),
}


@pytest.fixture(scope="module")
def cut() -> Callable[[str], tuple[nn.Module, Inputs, Cuttable, int]]:
    made: dict[str, tuple[nn.Module, Inputs, Cuttable, int]] = {}

    def get(name: str) -> tuple[nn.Module, Inputs, Cuttable, int]:
        if name not in made:
            build, inputs, at = CASES[name]
            torch.manual_seed(1)
            model = build()
            blocks = cuttable(model, inputs(2), at)
            split = blocks.after(at)
            assert split is not None
            made[name] = (model, inputs, blocks, split)
        return made[name]

    return get


Cut = Callable[[str], tuple[nn.Module, Inputs, Cuttable, int]]


def both(blocks: Cuttable, split: int) -> list[nn.Module]:
    return deepcopy([blocks.part(0, split), blocks.part(split, len(blocks.names))])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("training", [True, False])
def test_two_parts_compose_to_the_whole_for_any_size_of_batch(
    name: str, training: bool, cut: Cut
) -> None:
    model, inputs, blocks, split = cut(name)
    for count in (2, 5) if training else (1, 2, 7):
        whole, parts = deepcopy(model).train(training), both(blocks, split)
        torch.manual_seed(3)
        expected = call(whole, inputs(count))
        torch.manual_seed(3)
        value: object = inputs(count)
        for part in parts:
            value = call(part.train(training), value)
            assert is_activation(value)
            assert all(len(tensor) == count for tensor in tensors_of(value))
        assert torch.equal(value, expected)  # type: ignore[arg-type]
        after = whole.state_dict()  # running statistics
        for part in parts:
            assert all(torch.equal(after[key], tensor) for key, tensor in part.state_dict().items())


@pytest.mark.parametrize("name", CASES)
def test_the_parts_have_the_gradients_of_the_whole(name: str, cut: Cut) -> None:
    model, inputs, blocks, split = cut(name)
    whole, (device, server) = deepcopy(model).eval(), both(blocks, split)
    call(whole, inputs(3)).square().sum().backward()  # type: ignore[attr-defined]
    crossing = call(device.eval(), inputs(3))
    call(server.eval(), crossing).square().sum().backward()  # type: ignore[attr-defined]
    expected = {key: parameter.grad for key, parameter in whole.named_parameters()}
    for part in (device, server):
        for key, parameter in part.named_parameters():
            if (wanted := expected[key]) is None:
                assert parameter.grad is None
            else:
                assert parameter.grad is not None
                torch.testing.assert_close(parameter.grad, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_states_of_the_parts_are_a_partition_of_the_whole_models(name: str, cut: Cut) -> None:
    model, _, blocks, _ = cut(name)
    whole = model.state_dict()
    for split in range(1, len(blocks.names)):
        parts = [blocks.part(0, split), blocks.part(split, len(blocks.names))]
        names = [key for part in parts for key in part.state_dict()]
        assert sorted(names) == sorted(whole)
        assert {id(p) for part in parts for p in part.parameters()} == {
            id(p) for p in model.parameters()
        }


@pytest.mark.parametrize("name", CASES)
def test_no_part_writes_into_its_input(name: str, cut: Cut) -> None:
    _, inputs, blocks, _ = cut(name)
    value = inputs(2)
    for index in range(len(blocks.names)):
        entered = map_tensors(value, torch.clone)
        value = call(blocks.part(index, index + 1), entered)
        assert all(tensor._version == 0 for tensor in tensors_of(entered))


def test_without_a_name_the_blocks_are_those_of_the_models_own_lists(cut: Cut) -> None:
    model, inputs, *_ = cut("bert")
    assert cuttable(model, inputs(2)).names == (
        *("bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1"),
        *("bert.pooler", "classifier"),
    )
    model, inputs, *_ = cut("efficient")
    assert cuttable(model, inputs(2)).names == (
        *("stem", "blocks.0", "blocks.1", "blocks.2", "head"),
    )


def test_a_mask_crosses_with_what_the_last_module_has_made(cut: Cut) -> None:
    _, inputs, blocks, split = cut("bert")
    crossing = tensors_of(call(blocks.part(0, split), inputs(2)))
    assert [tensor.is_floating_point() for tensor in crossing] == [True, False]
    assert crossing[0].shape == (2, 12, 16)


def test_behind_a_named_module_several_trained_values_cross(cut: Cut) -> None:
    _, inputs, blocks, split = cut("unet")
    crossing = tensors_of(call(blocks.part(0, split), inputs(2)))
    assert [tuple(tensor.shape) for tensor in crossing] == [(2, 8, 4, 4), (2, 4, 8, 8)]


class AsksForLength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)])

    def forward(self, values: Tensor) -> Tensor:
        for layer in self.layers:
            values = layer(values).reshape(len(values), -1)
        return values


def test_a_batch_may_be_asked_for_its_length() -> None:
    model = AsksForLength()
    blocks = cuttable(model, torch.rand(2, 4))
    assert isinstance(blocks.segments, ExportSegments)
    data = torch.rand(5, 4)
    assert torch.equal(blocks.part(1, 2)(blocks.part(0, 1)(data)), model(data))


class Returning(nn.Module):
    """Uses its raw input again behind the last layer but one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(8, 2)

    def forward(self, values: Tensor) -> Tensor:
        assert len(values)
        return self.last(torch.cat([self.second(self.first(values)), values], dim=1))


def test_the_data_themselves_never_cross() -> None:
    expected = r"'first': .* needs the data themselves \(values\).*, or use a method .* fl, "
    with pytest.raises(ConfigError, match=expected):
        cuttable(Returning(), {"values": torch.rand(2, 4)}, "first")


def test_a_name_that_the_model_does_not_have_is_answered_with_one_that_it_has() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'blocks.1'\?"):
        cuttable(Efficient(), images(2), "block.1")


def test_exporting_changes_nothing_and_is_done_once_for_a_model() -> None:
    model = Efficient().train()
    model.stem.eval()
    before, modes = deepcopy(model.state_dict()), [m.training for m in model.modules()]
    generator = torch.get_rng_state()
    graphs = exported(model, images(2))
    assert exported(model, images(7)) is graphs
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), generator)


def test_what_is_never_used_is_kept_with_the_server_side(cut: Cut) -> None:
    model, _, blocks, split = cut("efficient")
    assert isinstance(blocks.segments, ExportSegments)
    server = blocks.part(split, len(blocks.names)).state_dict()
    assert {key for key in model.state_dict() if key.startswith("unused")} <= set(server)


def test_the_auxiliary_network_is_made_after_layers_of_the_device_side(cut: Cut) -> None:
    model, inputs, blocks, split = cut("bert")
    device = blocks.part(0, split)
    assert isinstance(device, ExportedPart)
    inside = [name for name, m in model.named_modules() if m in device._exported_layers]
    assert inside
    assert all(name.startswith(("bert.embeddings", "bert.encoder.layer.0")) for name in inside)
    crossing = call(device, inputs(2))
    auxiliary = build_auxiliary(device, crossing, 3)
    assert auxiliary is not None
    assert call(auxiliary, crossing).shape == (2, 3)  # type: ignore[attr-defined]


def test_a_named_module_is_found_without_exporting_where_fx_or_a_sequential_does() -> None:
    sequential = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    blocks = cuttable(sequential, torch.rand(2, 4), "0")
    assert not isinstance(blocks.segments, ExportSegments)
    assert blocks.after("0") == 1
    nested = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), nn.ReLU())
    blocks = cuttable(nested, torch.rand(2, 4), "0.0")
    assert not isinstance(blocks.segments, ExportSegments)
    assert blocks.names == ("0.0", "0.2")
    assert blocks.after("0.0") == 1
