from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from fedoptima.core.errors import ConfigError
from fedoptima.data.augment import CropAndFlip
from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset
from fedoptima.data.loader import Loader


def numbered(samples: int = 23, *, augment: bool = False) -> Dataset:
    """Sample i is an image full of i + 1 with the label i."""
    images = torch.arange(1, samples + 1, dtype=torch.uint8).view(-1, 1, 1, 1)
    images = images.expand(samples, 1, 4, 4).contiguous()
    data = (images, torch.arange(samples))
    return as_dataset(data, data, augment=CropAndFlip(1, flip=True) if augment else None)


def loader(dataset: Dataset, rows: list[int] | None = None, **changes) -> Loader:
    settings = {"batch_size": 5, "seed": 3, "node": "pi-1"} | changes
    indices = np.arange(len(dataset.train)) if rows is None else np.array(rows)
    return Loader(dataset, indices, **settings)


def same(first, second) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_an_epoch_gives_each_sample_once_and_leaves_out_the_incomplete_batch():
    batches = loader(numbered())
    assert (batches.samples, batches.per_epoch) == (23, 4)
    seen = torch.cat([batches.batch(step)[1] for step in range(4)])
    assert len(seen) == len(seen.unique()) == 20
    again = torch.cat([batches.batch(step)[1] for step in range(4, 8)])
    assert not torch.equal(again, seen)


def test_over_the_epochs_no_sample_is_left_out_for_ever():
    batches = loader(numbered())
    seen = torch.cat([batches.batch(step)[1] for step in range(40)])
    assert len(seen.unique()) == 23


def test_a_batch_depends_on_the_step_and_not_on_what_was_asked_before():
    dataset = numbered(augment=True)
    forward, backward, alone = (loader(dataset) for _ in range(3))
    straight = [forward.batch(step) for step in range(12)]
    reverse = [backward.batch(step) for step in reversed(range(12))][::-1]
    assert all(same(a, b) for a, b in zip(straight, reverse, strict=True))
    assert same(alone.batch(7), straight[7])
    assert same(alone.batch(7), straight[7])


@pytest.mark.parametrize("change", [{"seed": 4}, {"node": "pi-2"}])
def test_another_seed_or_node_gets_other_batches(change):
    dataset = numbered()
    first, second = loader(dataset), loader(dataset, **change)
    assert any(not same(first.batch(step), second.batch(step)) for step in range(3))


def test_only_the_given_rows_are_used_and_inputs_stay_with_their_labels():
    rows = [2, 3, 5, 7, 11, 13]
    batches = loader(numbered(), rows, batch_size=2)
    for step in range(6):
        inputs, labels = batches.batch(step)
        assert set(labels.tolist()) <= set(rows)
        assert torch.allclose(inputs[:, 0, 0, 0] * 255, labels + 1.0)


def test_fewer_samples_than_a_batch_are_one_batch():
    batches = loader(numbered(), [1, 2, 3], batch_size=100)
    assert (batches.samples, batches.per_epoch) == (3, 1)
    assert sorted(batches.batch(9)[1].tolist()) == [1, 2, 3]


def test_augmentation_can_be_switched_off_and_leaves_the_order_alone():
    dataset = numbered(augment=True)
    with_it, without = loader(dataset), loader(dataset, augment=False)
    assert any(not torch.equal(with_it.batch(s)[0], without.batch(s)[0]) for s in range(3))
    assert all(torch.equal(with_it.batch(s)[1], without.batch(s)[1]) for s in range(3))
    plain, _ = without.batch(0)
    assert torch.equal(plain, plain[:, :, :1, :1].expand_as(plain))


def test_every_step_is_augmented_in_its_own_way():
    images = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4).expand(10, 1, 4, 4)
    data = (images, torch.zeros(10, dtype=torch.int64))
    batches = loader(as_dataset(data, data, augment=CropAndFlip(1, flip=True)), batch_size=1)
    outcomes = [tuple(batches.batch(step)[0].flatten().tolist()) for step in range(20)]
    assert len(set(outcomes[:10])) > 3  # within an epoch
    assert outcomes[:10] != outcomes[10:]


def test_an_epoch_is_drawn_at_once_whatever_was_drawn_before():
    dataset = numbered(augment=True)
    fresh, used = loader(dataset), loader(dataset)
    for step in (0, 5, 2, 11):
        used.batch(step)
    for number in (2, 0, 1):
        first, second = fresh.epoch(number), used.epoch(number)
        assert (first.rows.shape, first.drawn.shape) == ((4, 5), (4, 5, 3))
        assert torch.equal(first.rows, second.rows)
        assert torch.equal(first.drawn, second.drawn)
    assert not torch.equal(fresh.epoch(0).drawn, fresh.epoch(1).drawn)


def test_an_epoch_is_drawn_once_and_not_kept_beyond_its_last_step():
    batches = loader(numbered(augment=True))
    first = weakref.ref(batches.epoch(0))
    for step in range(3):
        batches.batch(step)
        assert first() is batches.epoch(0)
    again = batches.batch(3)
    assert first() is None
    assert same(batches.batch(3), again)


def test_crops_are_drawn_apart_for_each_seed_and_node():
    dataset = numbered(augment=True)
    drawn = [
        loader(dataset, **change).epoch(0).drawn for change in ({}, {"seed": 4}, {"node": "pi-2"})
    ]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_batch_is_a_function_of_its_part_of_the_epoch():
    batches = loader(numbered(augment=True))
    for step in range(8):
        epoch = batches.epoch(step // 4)
        assert same(batches.compute(*epoch.at(step % 4)), batches.batch(step))


def test_without_augmentation_nothing_is_drawn_for_it():
    assert loader(numbered(augment=True), augment=False).epoch(0).drawn is None
    assert loader(numbered()).epoch(0).drawn is None


def test_bad_arguments_are_errors():
    with pytest.raises(ConfigError, match="batch size 0 of 'pi-1'"):
        loader(numbered(), batch_size=0)
    with pytest.raises(ConfigError, match="empty partition: 'pi-1'"):
        loader(numbered(), [])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gets_the_same_batches():
    dataset = numbered(augment=True)
    here, there = loader(dataset), loader(dataset.to("cuda"))
    for step in range(12):
        inputs, labels = there.batch(step)
        assert inputs.is_cuda
        assert same(here.batch(step), (inputs.cpu(), labels.cpu()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_steps_of_an_epoch_can_be_recorded_in_a_cuda_graph():
    batches = loader(numbered(augment=True).to("cuda"))
    epoch = batches.epoch(0)
    rows, drawn = epoch.rows.clone(), epoch.drawn.clone()  # static: later epochs are copied in
    place = torch.zeros(1, dtype=torch.int64, device="cuda")

    def step():
        return batches.compute(rows.index_select(0, place)[0], drawn.index_select(0, place)[0])

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()  # constants of the preparation are made before the recording
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    for number in range(8):
        if number == 4:
            rows.copy_(batches.epoch(1).rows)
            drawn.copy_(batches.epoch(1).drawn)
        place.fill_(number % 4)
        graph.replay()
        assert same(recorded, batches.batch(number))
