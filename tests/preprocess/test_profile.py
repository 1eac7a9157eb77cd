from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedoptima.core.errors import ConfigError
from fedoptima.core.plan import BlockProfile
from fedoptima.models.mobilenet import InvertedResidual
from fedoptima.models.transformer import transformer6
from fedoptima.models.vgg5 import vgg5
from fedoptima.preprocess.cuts import cuttable
from fedoptima.preprocess.profile import profile, profile_module
from fedoptima.preprocess.split import Profile

from .networks import every_network

NETWORKS = every_network()


@pytest.fixture(scope="module")
def vgg5_profile() -> Profile:
    example = torch.rand(2, 3, 32, 32)
    return profile(cuttable(vgg5(), example), example)


def test_vgg5_needs_the_known_number_of_multiply_adds(vgg5_profile: Profile) -> None:
    forward = [block.forward_flops for block in vgg5_profile.blocks]
    multiply_adds = [9 * 3 * 32 * 1024, 9 * 32 * 64 * 256, 9 * 64 * 64 * 64, 4096 * 128, 1280]
    assert forward == [2 * number for number in multiply_adds]
    assert sum(forward) / 2 == pytest.approx(8.49e6, rel=1e-3)


def test_backward_costs_twice_forward_but_data_need_no_gradient(vgg5_profile: Profile) -> None:
    ratios = [block.backward_flops / block.forward_flops for block in vgg5_profile.blocks]
    assert ratios == [1, 2, 2, 2, 2]


def test_vgg5_sends_the_known_number_of_bytes(vgg5_profile: Profile) -> None:
    megabytes = [block.output_bytes * 100 / 2**20 for block in vgg5_profile.blocks]
    assert megabytes[:3] == pytest.approx([3.125, 1.5625, 1.5625])


def test_parameter_bytes_count_the_buffers_too(vgg5_profile: Profile) -> None:
    first = vgg5_profile.blocks[0]
    assert first.parameters == 960
    # two float32 statistics of 32 channels and an int64 counter
    assert first.parameter_bytes == 960 * 4 + 2 * 32 * 4 + 8
    assert sum(block.parameters for block in vgg5_profile.blocks) == 582_346


def test_costs_are_per_sample(vgg5_profile: Profile) -> None:
    example = torch.rand(5, 3, 32, 32)
    assert profile(cuttable(vgg5(), example), example) == vgg5_profile


def test_a_depthwise_convolution_costs_twice_as_much_backward_as_forward() -> None:
    block = InvertedResidual(8, 8, expanded=64, kernel=5, squeeze=True, hardswish=True)
    cost = profile_module(block, torch.rand(2, 8, 6, 6))
    assert cost.backward_flops == 2 * cost.forward_flops


@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_without_groups_is_counted_as_torch_counts_it(transposed: bool) -> None:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = kind(3, 7, 3, stride=2)
    images = torch.rand(2, 3, 9, 9, requires_grad=True)
    output = layer(images)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        output.sum().backward()
    assert profile_module(layer, images).backward_flops * 2 == counter.get_total_flops()


def test_a_transformer_sends_its_mask_and_counts_its_attention() -> None:
    example = torch.randint(0, 20, (3, 8))
    first = profile(
        cuttable(transformer6(vocabulary=20, length=8, classes=2), example), example
    ).blocks[0]
    assert first.output_bytes == 8 * 100 * 4 + 8
    projections = 8 * (100 * 300 + 3 * 100 * 100)
    attention = 2 * 8 * 8 * 100
    assert first.forward_flops == 2 * (projections + attention)


@pytest.mark.parametrize("name", NETWORKS)
def test_profiling_leaves_the_model_as_it_was(name: str) -> None:
    model, example = deepcopy(NETWORKS[name])
    model.train()
    model(example).sum().backward()
    next(model.children()).eval()
    state = deepcopy(model.state_dict())
    gradients = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    modes = [m.training for m in model.modules()]
    data, generator = example.clone(), torch.get_rng_state()
    with torch.no_grad():
        profile(cuttable(model, example), example)
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    for key, parameter in model.named_parameters():
        assert (parameter.grad is None) == (key not in gradients)
        assert parameter.grad is None or torch.equal(parameter.grad, gradients[key])
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(example, data)
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_block_without_weights_costs_nothing() -> None:
    cost = profile_module(nn.Flatten(), torch.rand(2, 3, 4))
    assert cost == BlockProfile("auxiliary", 0.0, 0.0, 48, 48, 0, 0, cut_rows=((0, 12),))


def test_only_tensors_that_a_code_makes_smaller_are_to_be_coded() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(4, 6)  # the bias has one number in each row

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            masks = (torch.full_like(x, -torch.inf), torch.full_like(x, torch.finfo(x.dtype).min))
            return self.project(x), x > 0, x.long(), *masks, x[:, 0], x.double(), x

    cost = profile_module(Several(), torch.rand(2, 4))
    assert cost.cut_rows == ((0, 6), (7, 4))
    assert cost.weight_rows == (24, 6)


@pytest.mark.parametrize("example", [torch.rand(0, 3), torch.tensor(1.0), "text"])
def test_profiling_without_a_sample_is_refused(example: object) -> None:
    with pytest.raises(ConfigError, match="at least one sample"):
        profile_module(nn.Flatten(), example)


# ---- bytes that operations move ------------------------------------------------------------------


def moved(module: nn.Module, example: torch.Tensor) -> tuple[int, int]:
    cost = profile_module(module, example, traffic=True)
    return cost.forward_moved, cost.backward_moved


def test_an_activation_function_reads_and_writes_its_tensor_and_backward_one_more() -> None:
    assert moved(nn.ReLU(), torch.rand(2, 5)) == (2 * 5 * 4, 3 * 5 * 4)


def test_weights_are_not_counted_for_every_sample() -> None:
    # forward 3 in, 4 out; backward for the input 4, 3, for the weight 4, 3, for the bias 4
    assert moved(nn.Linear(3, 4), torch.rand(2, 3)) == (7 * 4, 18 * 4)


def test_views_move_nothing() -> None:
    assert moved(nn.Flatten(), torch.rand(2, 3, 4)) == (0, 0)


def test_an_element_of_a_window_that_is_searched_counts_as_a_vector() -> None:
    forward, backward = moved(nn.MaxPool2d(2), torch.rand(2, 1, 4, 4))
    assert forward == 16 * 32
    assert backward == (4 + 16) * 4 + 4 * 8 + 16 * 4  # gradient, input, indices; gradient


def test_a_depthwise_convolution_reads_a_number_for_every_product() -> None:
    dense, depthwise = nn.Conv2d(8, 8, 3, bias=False), nn.Conv2d(8, 8, 3, groups=8, bias=False)
    images = torch.rand(2, 8, 6, 6)
    plain, charged = moved(dense, images), moved(depthwise, images)
    products = 8 * 4 * 4 * 9
    assert charged == (plain[0] + 4 * products, plain[1] + 2 * 4 * products)


def test_dropout_moves_bytes_though_it_has_no_flops() -> None:
    forward, backward = moved(nn.Dropout(0.5), torch.rand(4, 8))
    assert forward > 2 * 8 * 4
    assert backward > 0


def test_bytes_are_counted_per_sample_and_only_where_they_are_asked_for() -> None:
    small, large = torch.rand(2, 3, 32, 32), torch.rand(3, 3, 32, 32)
    counted = profile(cuttable(vgg5(), small), small, traffic=True)
    assert profile(cuttable(vgg5(), large), large, traffic=True) == counted
    plain = profile(cuttable(vgg5(), small), small)
    assert all(block.forward_moved == block.backward_moved == 0 for block in plain.blocks)
    without = [replace(b, forward_moved=0, backward_moved=0, saved_bytes=0) for b in counted.blocks]
    assert without == list(plain.blocks)
    assert all(block.forward_moved > 0 and block.backward_moved > 0 for block in counted.blocks)


def test_what_autograd_keeps_is_counted_once_however_many_blocks_use_it() -> None:
    """Block by block as much as of the whole model; parameters and the input are not in it."""
    model, example = vgg5(), torch.rand(4, 3, 32, 32)
    known = {t.untyped_storage().data_ptr() for t in (example, *model.parameters())}
    found: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[:1] == example.shape[:1]:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model.train()(example)
    kept = sum(size for place, size in found.items() if place not in known) + output.nbytes
    blocks = profile(cuttable(model, example), example, traffic=True).blocks
    assert sum(block.saved_bytes for block in blocks) * 4 == pytest.approx(kept, rel=0.02)
