"""A light auxiliary network never costs more than the device side."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.method import ServerTraining
from fedoptima.models.activation import Masked, map_tensors, samples_in, tensors_of
from fedoptima.preprocess.light_auxiliary import CoarserPositions, light_forms
from fedoptima.preprocess.plan import PlanSettings, make_plan
from fedoptima.preprocess.sides import MeasuredCosts, build_sides
from fedoptima.preprocess.split import DeviceSpeed
from fedoptima.tasks.output import Output

from . import user_models as users
from .networks import every_network
from .test_auxiliary import CLASSES, ENDINGS

NETWORKS = every_network()


def settings(split: int, auxiliary: str = "light", classes: int = CLASSES) -> PlanSettings:
    return PlanSettings(ServerTraining.SHARED, 1, classes, seed=3, auxiliary=auxiliary, split=split)


def works(costs: MeasuredCosts, split: int) -> tuple[float, float]:
    """Of the device side and of the auxiliary network, for a sample."""
    blocks, extra = costs.blocks().blocks[:split], costs.auxiliary(split)
    assert extra is not None
    own = sum(block.forward_flops + block.backward_flops for block in blocks)
    return own, extra.forward_flops + extra.backward_flops


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_costs_less_than_the_device_side_and_than_the_default(name: str, split: int) -> None:
    model, example = NETWORKS[name]
    own, light = works(MeasuredCosts(model, example, settings(split)), split)
    _, default = works(MeasuredCosts(model, example, settings(split, "default")), split)
    assert light <= own
    assert light <= default


@pytest.mark.parametrize(
    ("build", "example"),
    [
        pytest.param(users.bert, users.words, marks=pytest.mark.slow),
        (users.vision_transformer, users.images),
    ],
)
def test_so_it_does_behind_models_that_are_not_ours(
    build: Callable[[], nn.Module], example: Callable[[int], Tensor]
) -> None:
    pytest.importorskip("transformers")
    costs = MeasuredCosts(build(), example(2), settings(1, classes=users.CLASSES))
    own, light = works(costs, 1)
    assert light <= own


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_form_gives_logits_and_gradients(ending: str) -> None:
    device_side, data, _ = ENDINGS[ending]
    activation = device_side(data)
    for build in light_forms(device_side, activation, Output(CLASSES)):
        network = build()
        assert network is not None
        entered = map_tensors(
            activation, lambda t: t.detach().clone().requires_grad_(t.is_floating_point())
        )
        logits = network(entered)
        assert logits.shape == (samples_in(data), CLASSES)
        logits.square().sum().backward()
        gradients = [p.grad for p in network.parameters()] + [tensors_of(entered)[0].grad]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("places", [(8, 8), (16, 16)])
def test_pixels_are_averaged_and_predicted_where_they_were(places: tuple[int, int]) -> None:
    side, images = nn.Conv2d(3, 5, 3, padding=1), torch.rand(2, 3, 8, 8)
    forms = [build() for build in light_forms(side, side(images), Output(CLASSES, places))]
    assert len(forms) > 2
    for network in forms:
        assert network is not None
        assert network(side(images)).shape == (2, CLASSES, *places)


def test_words_that_are_predicted_one_by_one_are_not_averaged() -> None:
    side, words = nn.Linear(4, 6), torch.rand(2, 7, 4)
    (build,) = light_forms(side, side(words), Output(CLASSES, (7,)))
    network = build()
    assert network is not None
    assert network(side(words)).shape == (2, 7, CLASSES)


def test_of_several_tensors_the_first_is_read() -> None:
    side, words = nn.Linear(4, 6), torch.rand(2, 7, 4)
    activation = (side(words), torch.ones(2, 7))
    for build in light_forms(side, activation, Output(CLASSES)):
        network = build()
        assert network is not None
        assert network(activation).shape == (2, CLASSES)


def test_positions_are_averaged_without_their_padding() -> None:
    hidden = torch.tensor([[[1.0], [3.0], [5.0], [100.0], [100.0]]])
    mask = torch.tensor([[False, False, False, True, True]])
    coarser = CoarserPositions(2)
    mean, padding = coarser(Masked(hidden, mask))
    assert mean.flatten().tolist() == [2.0, 5.0, 0.0]
    assert padding.tolist() == [[False, False, True]]
    plain = coarser(hidden)
    assert isinstance(plain, Tensor)
    assert plain.flatten().tolist() == [2.0, 52.5, 100.0]


def test_a_device_builds_the_network_that_was_planned() -> None:
    model, example = NETWORKS["vgg5"]
    planned = settings(1)
    plan = make_plan(MeasuredCosts(model, example, planned), [DeviceSpeed(1.0, 1.0)], planned)
    sides = [build_sides(model, example, plan, planned) for _ in range(2)]
    assert plan.auxiliary_profile is not None
    for side in sides:
        assert side.auxiliary is not None
        count = sum(tensor.numel() for tensor in side.auxiliary.parameters())
        assert count == plan.auxiliary_profile.parameters
    first, second = (side.auxiliary.state_dict() for side in sides if side.auxiliary)
    assert all(torch.equal(first[name], second[name]) for name in first)
