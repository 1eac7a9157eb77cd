"""Items of a map-style dataset are drawn when they are used, with chance under control."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Subset, TensorDataset

from fedoptima.core.errors import ConfigError
from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset, Split
from fedoptima.data.items import Items
from fedoptima.data.loader import Loader
from fedoptima.data.partition import hold_out

COUNT = 12
TEST = (torch.zeros(3, 4), torch.tensor([0, 1, 2]))


class Chance(TorchDataset[tuple[Tensor, int]]):
    """Its number, and a draw of each of the three global generators."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        draws = [float(torch.rand(())), float(np.random.rand()), random.random()]
        return torch.tensor([index, *draws]), index % 3


class BadAt(Chance):
    """From its second draw on (the first is that of the load) item 5 is wrong."""

    def __init__(self, values: list[float], label: int = 2) -> None:
        self.values = torch.tensor(values)
        self.label = label
        self.drawn = 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.drawn += index == 5
        if index == 5 and self.drawn > 1:
            return self.values, self.label
        return super().__getitem__(index)


def loader(dataset: Dataset, rows: list[int] | None = None, **changes: object) -> Loader:
    settings: dict[str, object] = {"batch_size": 4, "seed": 3, "node": "pi-1", **changes}
    return Loader(dataset, np.array(rows or range(COUNT)), **settings)  # type: ignore[arg-type]


def epoch(batches: Loader, number: int) -> dict[int, list[float]]:
    """What was drawn for each item."""
    steps = range(number * batches.per_epoch, (number + 1) * batches.per_epoch)
    rows = torch.cat([batches.batch(step)[0] for step in steps]).tolist()
    return {int(row[0]): row[1:] for row in rows}


def test_every_epoch_draws_each_item_anew() -> None:
    batches = loader(as_dataset(Chance(), TEST))
    first, second = epoch(batches, 0), epoch(batches, 1)
    assert set(first) == set(second) == set(range(COUNT))
    for item in range(COUNT):
        assert all(a != b for a, b in zip(first[item], second[item], strict=True))
    draws = [draw for item in first.values() for draw in item]
    assert len(set(draws)) == len(draws)


def test_an_item_depends_on_seed_epoch_and_number_alone() -> None:
    dataset = as_dataset(Chance(), TEST)
    first = epoch(loader(dataset), 1)
    again = loader(dataset)
    backwards = torch.cat([again.batch(step)[0] for step in (5, 3, 4)]).tolist()
    assert {int(row[0]): row[1:] for row in backwards} == first
    elsewhere = epoch(loader(dataset, list(range(4, 12)), node="pi-2", batch_size=2), 1)
    assert elsewhere == {item: first[item] for item in elsewhere}
    assert epoch(loader(dataset, seed=4), 1)[0] != first[0]


def test_the_generators_are_put_back_after_a_draw() -> None:
    batches = loader(as_dataset(Chance(), TEST))
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(1)
    expected = (float(torch.rand(())), np.random.rand(), random.random())
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(1)
    batches.batch(0)
    as_dataset(Chance(), TEST)
    assert (float(torch.rand(())), np.random.rand(), random.random()) == expected


def test_the_generators_are_put_back_when_an_item_fails() -> None:
    torch.manual_seed(1)
    expected = torch.get_rng_state()
    with pytest.raises(ConfigError, match="item 0"):
        as_dataset([object()] * 3, TEST)
    assert torch.equal(torch.get_rng_state(), expected)


def test_one_draw_is_kept_where_the_user_asks_for_it() -> None:
    batches = loader(as_dataset(Chance(), TEST, cache=True))
    assert epoch(batches, 0) == epoch(batches, 1)
    assert epoch(loader(as_dataset(Chance(), TEST).cached()), 0) == epoch(batches, 0)


def test_inputs_are_not_held() -> None:
    drawn: list[weakref.ref[Tensor]] = []

    class Watched(Chance):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            x, y = super().__getitem__(index)
            drawn.append(weakref.ref(x))
            return x, y

    dataset = as_dataset(Watched(), TEST)
    batches = loader(dataset)
    for step in range(6):
        batches.batch(step)
    assert len(drawn) == 3 * COUNT
    assert sum(reference() is not None for reference in drawn) <= 2


def test_tensors_in_memory_are_not_drawn() -> None:
    inputs, labels = torch.rand(COUNT, 4), torch.arange(COUNT) % 3
    whole = TensorDataset(inputs, labels)
    train = as_dataset(whole, TEST).train
    assert isinstance(train, Split)
    assert train.inputs is inputs or train.inputs.data_ptr() == inputs.data_ptr()
    part = as_dataset(Subset(whole, [3, 1]), TEST).train
    assert isinstance(part, Split)
    assert torch.equal(part.inputs, inputs[[3, 1]])
    assert isinstance(as_dataset(list(whole), TEST).train, Split)


def test_a_dataset_of_ones_own_is_drawn_even_if_it_is_made_of_tensors() -> None:
    class Noisy(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            x, y = super().__getitem__(index)
            return x + torch.rand(4), y

    noisy = Noisy(torch.zeros(COUNT, 4), torch.arange(COUNT) % 3)
    for data in (noisy, Subset(noisy, range(COUNT))):
        assert isinstance(as_dataset(data, TEST).train, Items)


def test_what_is_held_out_is_drawn_once() -> None:
    kept, held = hold_out(as_dataset(Chance(), TEST), 0.25, seed=1)
    assert isinstance(held, Split)
    assert (len(held), len(kept.train)) == (3, 9)
    batches = loader(kept, list(range(9)), batch_size=9)
    seen = set(epoch(batches, 0))
    assert seen | set(held.inputs[:, 0].int().tolist()) == set(range(COUNT))


def test_an_item_that_turns_nan_is_found_when_it_is_drawn() -> None:
    dataset = as_dataset(BadAt([0.0, float("nan"), 0.0, 0.0]), TEST)
    with pytest.raises(ConfigError, match="NaN or infinite in row 5 as drawn now"):
        epoch(loader(dataset), 0)


def test_an_item_that_changes_its_shape_or_label_is_found_when_it_is_drawn() -> None:
    with pytest.raises(ConfigError, match=r"item 5 is \(2,\)|before it are \(2,\)|are \(2,\)"):
        epoch(loader(as_dataset(BadAt([0.0, 0.0]), TEST)), 0)
    changing = as_dataset(BadAt([5.0, 0.0, 0.0, 0.0], label=0), TEST)
    with pytest.raises(ConfigError, match=r"label of item 5 is 0, and was 2 .* by chance"):
        epoch(loader(changing), 0)


def test_an_item_that_cannot_be_read_is_named() -> None:
    class Missing(Chance):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            if index == 7:
                raise FileNotFoundError("7.png")
            return super().__getitem__(index)

    with pytest.raises(ConfigError, match=r"item 7 cannot be read: FileNotFoundError: 7\.png"):
        as_dataset(Missing(), TEST)


def test_workers_draw_the_same_and_a_step_ahead() -> None:
    alone = loader(as_dataset(Chance(), TEST))
    helped = loader(as_dataset(Chance(), TEST).with_workers(2))
    for step in (0, 1, 2, 3, 7, 0):
        for mine, theirs in zip(alone.batch(step), helped.batch(step), strict=True):
            assert torch.equal(mine, theirs)


class Scaled:
    """An augmentation: each sample times its random number."""

    def draw(self, count: int, seed: int) -> Tensor:
        return torch.rand(count, 1, generator=torch.Generator().manual_seed(seed))

    def __call__(self, batch: Tensor, drawn: Tensor) -> Tensor:
        return batch * drawn


def test_items_drawn_a_step_ahead_are_augmented_with_their_own_numbers() -> None:
    dataset = as_dataset(Chance(), TEST, augment=Scaled())
    alone, helped = loader(dataset), loader(dataset.with_workers(2))
    plain = loader(dataset, augment=False)
    for step in range(7):  # three make an epoch
        assert torch.equal(alone.batch(step)[0], helped.batch(step)[0])
        drawn = alone.epoch(step // 3).drawn
        assert drawn is not None
        assert torch.equal(alone.batch(step)[0], plain.batch(step)[0] * drawn[step % 3])


def test_workers_leave_what_a_terminal_sends_to_all_to_the_program() -> None:
    before = multiprocessing.active_children()
    helped = loader(as_dataset(Chance(), TEST).with_workers(1))
    helped.batch(0)
    (worker,) = set(multiprocessing.active_children()) - set(before)
    assert worker.pid is not None
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(worker.pid, number)
    for step in (5, 6, 7):
        helped.batch(step)


def test_a_dataset_that_cannot_go_to_workers_is_refused_with_the_way_out() -> None:
    class Local(Chance):
        pass

    batches = loader(as_dataset(Local(), TEST).with_workers(2))
    with pytest.raises(ConfigError, match=r"data\.workers = 2: .*top level.*data\.workers = 0"):
        batches.batch(0)


def test_a_data_set_with_workers_can_be_copied_to_another_process() -> None:
    dataset = as_dataset(Chance(), TEST).with_workers(2)
    copy = pickle.loads(pickle.dumps(dataset.train))
    assert torch.equal(copy.labels, dataset.train.labels)
