from __future__ import annotations

import pytest
import torch
from torch import nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.mobilenet import InvertedResidual, mobilenet_v3_large
from fedoptima.models.vgg5 import vgg5


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_vgg5_has_the_published_number_of_parameters() -> None:
    assert count(vgg5(channels=3, image_size=32, classes=10)) == 582_346


def test_mobilenet_has_the_published_number_of_parameters() -> None:
    assert count(mobilenet_v3_large(channels=3, image_size=64, classes=1000)) == 5_483_032


@pytest.mark.parametrize(
    ("channels", "image_size", "classes"), [(3, 32, 10), (1, 8, 10), (1, 28, 7), (2, 5, 3)]
)
def test_vgg5_fits_any_image_size(channels: int, image_size: int, classes: int) -> None:
    model = vgg5(channels=channels, image_size=image_size, classes=classes)
    assert model(torch.rand(2, channels, image_size, image_size)).shape == (2, classes)


@pytest.mark.parametrize("image_size", [32, 64, 75])
def test_mobilenet_fits_any_image_size(image_size: int) -> None:
    model = mobilenet_v3_large(channels=1, image_size=image_size, classes=5)
    assert model(torch.rand(2, 1, image_size, image_size)).shape == (2, 5)


def test_blocks_are_named_by_their_place() -> None:
    assert [name for name, _ in vgg5().named_children()] == [f"block{i}" for i in range(1, 6)]
    names = [name for name, _ in mobilenet_v3_large().named_children()]
    assert names == ["stem", *(f"bneck{i}" for i in range(1, 16)), "conv", "head"]


def test_mobilenet_halves_the_image_where_the_published_network_does() -> None:
    model = mobilenet_v3_large(image_size=64, classes=2).eval()
    shapes = []
    images = torch.rand(1, 3, 64, 64)
    for block in model:
        images = block(images)
        shapes.append(tuple(images.shape[1:]))
    assert shapes == [
        (16, 32, 32),
        (16, 32, 32),
        *[(24, 16, 16)] * 2,
        *[(40, 8, 8)] * 3,
        *[(80, 4, 4)] * 4,
        *[(112, 4, 4)] * 2,
        *[(160, 2, 2)] * 3,
        (960, 2, 2),
        (2,),
    ]


def test_mobilenet_normalises_as_published_but_for_the_momentum_of_running_statistics() -> None:
    norms = [m for m in mobilenet_v3_large().modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 46
    assert {(norm.eps, norm.momentum) for norm in norms} == {(0.001, 0.1)}  # record 0009


@pytest.mark.parametrize(("stride", "outputs"), [(1, 8), (1, 6), (2, 8)])
def test_a_bottleneck_adds_its_input_only_where_shapes_agree(stride: int, outputs: int) -> None:
    block = InvertedResidual(
        8, outputs, expanded=16, kernel=3, stride=stride, squeeze=True, hardswish=True
    )
    nn.init.zeros_(block.get_submodule("layers.project.norm").weight)
    images = torch.rand(2, 8, 6, 6)
    expected = (
        images if (stride, outputs) == (1, 8) else torch.zeros(2, outputs, 6 // stride, 6 // stride)
    )
    assert torch.equal(block(images), expected)


def test_an_image_too_small_for_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="image_size = 3: must be at least 4"):
        vgg5(image_size=3)
    with pytest.raises(ConfigError, match="image_size = 28: must be at least 32"):
        mobilenet_v3_large(image_size=28)
