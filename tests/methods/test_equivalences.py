"""Where two methods must come to the same, they do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset
from fedoptima.models.vgg5 import vgg5
from tests.methods.references import Worker
from tests.methods.runs import (
    ALONE,
    BATCH,
    LIKE_ONE,
    assert_close,
    assert_equal,
    assert_statistics_moved,
    loaders,
    network,
    play,
)

# With one device no update is ever stale, so a first weight of 1 makes the merge a replacement;
# OAFL's default of 0.8 would keep a fifth of the model the round began with.
REPLACES = {"alpha": 1.0}


def photographs() -> Dataset:
    def some(count: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(count, 3, 32, 32, generator=generator), torch.arange(count) % 10

    return as_dataset(some(23, 0), some(10, 1))


def whole_vgg5() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return vgg5()


@pytest.mark.parametrize("split", [1, 2, 4])
@pytest.mark.parametrize(
    ("name", "options"),
    [("splitfed", {}), ("pipar", {"micro_batches": 1}), ("oafl", REPLACES)],
    ids=["splitfed", "pipar", "oafl"],
)
def test_a_split_model_on_one_device_learns_as_plain_sgd_on_the_whole(
    name: str, options: dict[str, object], split: int
) -> None:
    """VGG-5, batch-norm on both sides, momentum, two rounds: bit for bit."""
    dataset = photographs()
    run = play(
        name,
        rounds=2,
        model=whole_vgg5(),
        dataset=dataset,
        rows=ALONE,
        training=LIKE_ONE,
        split=split,
        **options,
    )
    worker = Worker(whole_vgg5(), loaders(ALONE, dataset)["only"])
    worker.train(whole_vgg5().state_dict())
    second_round = worker.train(worker.model.state_dict())
    assert_equal(run.weights, second_round)
    assert_statistics_moved(run.weights)
    assert int(run.weights["block1.norm.num_batches_tracked"]) == 2 * (23 // BATCH)


@pytest.mark.parametrize(
    ("name", "options"), [("fl", {}), ("fedasync", REPLACES), ("fedbuff", {"buffer": 1})]
)
def test_a_whole_model_on_one_device_learns_as_local_sgd(
    name: str, options: dict[str, object]
) -> None:
    run = play(name, rounds=3, rows=ALONE, **options)
    worker = Worker(network(), loaders(ALONE)["only"])
    state = network().state_dict()
    for _ in range(3):
        state = worker.train(state)
    if name == "fedbuff":  # x + (y - x) is y but for rounding; buffers are handed in whole
        assert_close(run.weights, state)
        assert int(run.weights["0.1.num_batches_tracked"]) == 3 * (23 // BATCH)
    else:
        assert_equal(run.weights, state)
    assert_statistics_moved(run.weights)


def test_oafl_on_one_device_is_splitfed_on_one_device() -> None:
    one, other = (
        play(name, rounds=3, rows=ALONE, **options)
        for name, options in (("oafl", REPLACES), ("splitfed", {}))
    )
    assert_equal(one.weights, other.weights)


def test_oafl_of_a_lower_weight_keeps_a_part_of_the_old_model() -> None:
    """So the test above does not hold by chance."""
    one, other = (play("oafl", rounds=3, rows=ALONE, alpha=alpha) for alpha in (1.0, 0.8))
    assert not torch.equal(one.weights["0.0.weight"], other.weights["0.0.weight"])
    assert not torch.equal(one.weights["2.1.weight"], other.weights["2.1.weight"])


def test_pipar_with_one_part_is_splitfed() -> None:
    pipar = play("pipar", rounds=3, micro_batches=1)
    splitfed = play("splitfed", rounds=3, on_leave="wait")  # PiPar's default
    assert_equal(pipar.weights, splitfed.weights)


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_pipar_with_several_parts_is_splitfed_where_samples_do_not_see_each_other(
    parts: int,
) -> None:
    """Five samples in two or three unequal parts: each counts by its size."""
    pipar = play("pipar", rounds=3, model=network(batch_norm=False), micro_batches=parts)
    splitfed = play("splitfed", rounds=3, model=network(batch_norm=False))
    assert_close(pipar.weights, splitfed.weights)


def test_waiting_or_dropping_is_the_same_while_nobody_leaves() -> None:
    waits, drops = (play("splitfed", rounds=2, on_leave=way) for way in ("wait", "drop"))
    assert_equal(waits.weights, drops.weights)


class Tied(nn.Sequential):
    """Two layers with one weight between them, as embeddings and their readers often have."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
        self[3].weight = self[1].weight
        self.append(nn.Linear(16, 3))


def test_a_weight_with_two_names_is_moved_by_its_change_under_both() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Tied()
    run = play("fedbuff", rounds=1, rows=ALONE, model=model, buffer=1, server_learning_rate=0.5)
    local = Worker(model, loaders(ALONE)["only"]).train(model.state_dict())
    halfway = {name: (tensor + local[name]) / 2 for name, tensor in model.state_dict().items()}
    assert_close(run.weights, halfway)
