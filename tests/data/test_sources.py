"""What a user may give as data: DataLoaders, streams, rows of columns, data by device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import Dataset as TorchDataset

from fedoptima.core.errors import ConfigError
from fedoptima.data import sources
from fedoptima.data.columns import DEVICE
from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset
from fedoptima.data.rows import Choice

X = torch.arange(24, dtype=torch.float32).view(6, 4)
Y = torch.tensor([0, 1, 2, 0, 1, 2])
PAIRS = TensorDataset(X, Y)


class Drawn(TorchDataset[tuple[Tensor, Tensor]]):
    """Items that are left to chance."""

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if not 0 <= number < len(Y):
            raise IndexError(number)
        return X[number] + torch.rand(()), Y[number]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(X, Y, strict=True)


def inputs(dataset: Dataset) -> Tensor:
    return dataset.train.read().tensor


def rows(**columns: Any) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"label": Y.tolist(), **columns})


# ---- a DataLoader --------------------------------------------------------------------------------


class Endless:
    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return X[row % len(X)], 0


def test_a_dataloader_of_something_without_a_length_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="cannot use Endless as data"):
        as_dataset(DataLoader(Endless()), PAIRS)  # type: ignore[arg-type]


def test_a_data_loader_stands_for_its_dataset(caplog: pytest.LogCaptureFixture) -> None:
    dataset = as_dataset(DataLoader(PAIRS, batch_size=2, shuffle=True), DataLoader(PAIRS))
    assert [record.getMessage() for record in caplog.records] == [
        "custom, train: a DataLoader stands for its dataset; batches have training.batch_size "
        "samples, not its 2"
    ]
    assert torch.equal(inputs(dataset), X)
    assert torch.equal(dataset.test.tensor, X)


def test_items_of_a_data_loaders_dataset_are_drawn_whenever_they_are_used() -> None:
    dataset = as_dataset(DataLoader(Drawn(), batch_size=2), PAIRS)
    first, second = (
        dataset.train.order(torch.arange(6), seed=1, epoch=epoch)()[0] for epoch in (0, 1)
    )
    assert not torch.equal(first, second)  # type: ignore[arg-type]


def test_each_sample_goes_through_a_collate_function_alone() -> None:
    def doubled(batch: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return 2 * torch.stack([x for x, _ in batch]), torch.stack([y for _, y in batch])

    dataset = as_dataset(DataLoader(PAIRS, collate_fn=doubled), PAIRS)
    assert torch.equal(inputs(dataset), 2 * X)
    stream = as_dataset(DataLoader(Stream(), collate_fn=doubled), PAIRS)
    assert torch.equal(inputs(stream), 2 * X)


def test_rows_go_through_a_collate_function_as_rows() -> None:
    def padded(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
        tokens = [torch.tensor([*row["input_ids"], 0, 0])[:3] for row in batch]
        labels = torch.tensor([row["label"] for row in batch])
        return {"input_ids": torch.stack(tokens), "labels": labels}

    data = rows(input_ids=[[1] * (1 + row % 3) for row in range(6)])
    dataset = as_dataset(DataLoader(data, collate_fn=padded), DataLoader(data, collate_fn=padded))  # type: ignore[arg-type]
    assert inputs(dataset)[:3].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert (dataset.kind, dataset.train.labels.tolist()) == ("text", Y.tolist())


@pytest.mark.parametrize(
    "sampler",
    [SubsetRandomSampler([0, 1]), WeightedRandomSampler([0.5] * 6, 6), SequentialSampler([0, 1])],
)
def test_a_sampler_that_chooses_samples_is_refused(sampler: Any) -> None:
    message = f"the DataLoader's {type(sampler).__name__} chooses .* give the dataset, or a Subset"
    with pytest.raises(ConfigError, match=message):
        as_dataset(DataLoader(PAIRS, sampler=sampler), PAIRS)
    with pytest.raises(ConfigError, match=message):  # also where it is asked for whole batches
        as_dataset(DataLoader(PAIRS, batch_sampler=BatchSampler(sampler, 2, False)), PAIRS)
    chosen = as_dataset(DataLoader(Subset(PAIRS, [0, 1])), PAIRS)
    assert torch.equal(inputs(chosen), X[:2])


# ---- what can only be read in order --------------------------------------------------------------


@pytest.mark.parametrize(
    "stream",
    [
        Stream(),
        DataLoader(Stream(), batch_size=4),
        zip(X, Y, strict=True),
        ({"x": x.tolist(), "label": y} for x, y in zip(X, Y.tolist(), strict=True)),
        rows(x=X.tolist()).to_iterable_dataset(),
        rows(x=X.tolist()).to_iterable_dataset().map(lambda row: row),  # forgets its columns' names
    ],
    ids=["torch", "loader", "iterator", "generator of rows", "hugging face", "mapped"],
)
def test_a_stream_is_read_once_and_kept(stream: object) -> None:
    dataset = as_dataset(stream, PAIRS)
    assert torch.equal(inputs(dataset), X)
    assert dataset.train.labels.tolist() == Y.tolist()


def test_a_stream_without_end_is_refused_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_BYTES", 1000 * X[0].nbytes)
    with pytest.raises(ConfigError, match=r"cycle can only be read in order.* first 1,000 samples"):
        as_dataset(itertools.cycle([(X[0], 0)]), PAIRS)


def test_a_stream_that_fails_or_is_empty_says_so() -> None:
    def fails() -> Iterator[tuple[Tensor, int]]:
        yield X[0], 0
        raise OSError("no such shard")

    with pytest.raises(ConfigError, match="item 1 cannot be read: OSError: no such shard"):
        as_dataset(fails(), PAIRS)
    with pytest.raises(ConfigError, match="train: is empty"):
        as_dataset(iter(()), PAIRS)


def test_a_stream_left_to_chance_reads_the_same_each_time() -> None:
    def drawn() -> Iterator[tuple[Tensor, int]]:
        yield from ((torch.rand(3), 0) for _ in range(4))

    before = torch.get_rng_state()
    test = (torch.zeros(1, 3), Y[:1])
    assert torch.equal(inputs(as_dataset(drawn(), test)), inputs(as_dataset(drawn(), test)))
    assert torch.equal(torch.get_rng_state(), before)


# ---- rows of columns -----------------------------------------------------------------------------


def test_a_hugging_face_dataset_is_used_directly() -> None:
    data = rows(x=X.tolist(), writer=list("aabbcc"))
    dataset = as_dataset(data, data)
    assert torch.equal(inputs(dataset), X)
    assert dataset.columns is not None
    assert dataset.columns.read("writer") == list("aabbcc")


def test_a_dataset_dict_brings_its_test_part() -> None:
    both = datasets.DatasetDict(train=rows(x=X.tolist()), validation=rows(x=X.tolist()))
    assert len(as_dataset(both).test) == 6
    assert len(as_dataset(both, (X[:2], Y[:2])).test) == 2
    with pytest.raises(ConfigError, match="has no part 'train'; it has validation"):
        as_dataset(datasets.DatasetDict(validation=both["validation"]), (X, Y))


def test_class_names_of_a_label_column_are_counted() -> None:
    names = datasets.ClassLabel(names=["a", "b", "c", "d"])
    data = rows(x=X.tolist()).cast_column("label", names)
    assert as_dataset(data, data).classes == 4


def test_pictures_become_bytes_with_the_channels_first() -> None:
    pixels = np.arange(6 * 4 * 4 * 3, dtype=np.uint8).reshape(6, 4, 4, 3)
    data = rows(image=[Image.fromarray(each) for each in pixels], id=list(range(6)))
    dataset = as_dataset(data, data)
    assert (dataset.kind, dataset.facts["channels"]) == ("image", 3)
    assert torch.equal(inputs(dataset), torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()))


def test_a_grey_picture_of_16_bits_is_one_channel_of_bytes() -> None:
    pixels = np.array([[[0, 256], [30_000, 65_535]]] * 6, dtype=np.uint16)
    data = rows(image=[Image.fromarray(each) for each in pixels])
    assert inputs(as_dataset(data, data))[0].tolist() == [[[0, 0], [116, 255]]]


def test_tokens_and_their_mask_are_inputs_by_name() -> None:
    tokens = {"input_ids": [[1, 2]] * 6, "attention_mask": [[1, 0]] * 6}
    data = rows(text=["a b"] * 6, **tokens)
    found = as_dataset(data, data).train.read().inputs
    assert isinstance(found, dict)
    assert {name: tensor[0].tolist() for name, tensor in found.items()} == {
        "input_ids": [1, 2],
        "attention_mask": [1, 0],
    }


def test_columns_of_numbers_become_one_vector_and_a_column_to_divide_by_is_none_of_them() -> None:
    data = rows(age=X[:, 0].tolist(), weight=X[:, 1].tolist(), patient=[1, 1, 2, 2, 3, 3])
    both = as_dataset(data, data, choice=Choice(features=("age", "weight")))
    assert torch.equal(inputs(both), X[:, :2])
    one = data.remove_columns("weight")
    assert inputs(as_dataset(one, one, choice=Choice(besides=("patient",)))).shape == (6,)


def test_a_transform_acts_whenever_an_item_is_drawn() -> None:
    def noisy(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {
            "x": [torch.tensor(x) + torch.rand(()) for x in batch["x"]],
            "label": batch["label"],
        }

    data = rows(x=X.tolist()).with_transform(noisy)
    train = as_dataset(data, (X, Y)).train
    drawn = [train.order(torch.arange(6), seed=1, epoch=epoch)()[0] for epoch in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])  # type: ignore[arg-type]
    assert not torch.equal(drawn[0], drawn[2])  # type: ignore[arg-type]


def test_items_that_are_dicts_need_no_hugging_face() -> None:
    items = [{"pixel_values": x, "labels": int(y)} for x, y in zip(X, Y, strict=True)]
    assert torch.equal(inputs(as_dataset(items, items)), X)


@pytest.mark.parametrize(
    ("label", "choice"), [("label", Choice()), ("labels", Choice()), ("y", Choice(label="y"))]
)
def test_a_list_of_two_rows_is_not_a_pair_of_inputs_and_labels(label: str, choice: Choice) -> None:
    items = [{"pixel_values": x, label: int(y)} for x, y in zip(X[:2], Y[:2], strict=True)]
    opened = sources.opened(items, "train", choice)
    assert len(opened) == 2
    assert opened[0] is items[0]


@pytest.mark.parametrize(
    ("columns", "choice", "message"),
    [
        ({"text": ["a"] * 6}, Choice(), "column 'text' holds text; .* tokenise it"),
        ({"a": [1] * 6, "b": [2] * 6}, Choice(), r"columns a, b: name those .*'features': \['a'\]"),
        ({"a": [1] * 6}, Choice(features=("b",)), "has no column 'b'; it has label, a"),
        ({"a": [1] * 6}, Choice(label="y"), "has no column 'y'; it has label, a"),
        ({"a": [1] * 6, "s": ["x"] * 6}, Choice(("a",), "s"), "the label is the text 'x'; number"),
    ],
)
def test_columns_that_cannot_be_used_are_named(
    columns: dict[str, Any], choice: Choice, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        as_dataset(rows(**columns), (X, Y), choice=choice)


# ---- data by device ------------------------------------------------------------------------------


def test_data_by_device_are_chained_and_each_sample_knows_its_device() -> None:
    dataset = as_dataset({"b": (X[:2], Y[:2]), "a": TensorDataset(X[2:], Y[2:])}, (X, Y))
    assert torch.equal(inputs(dataset), X)
    assert dataset.columns is not None
    assert dataset.columns.read(DEVICE) == ["b", "b", "a", "a", "a", "a"]


def test_devices_may_hold_data_of_different_forms() -> None:
    dataset = as_dataset({"a": (X, Y), "b": Drawn(), "c": Stream()}, (X, Y))
    assert len(dataset.train) == 18
    assert torch.equal(inputs(dataset)[12:], X)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({}, "a dict holds data by the name of the device"),
        ({1: (X, Y)}, "a dict holds data by the name of the device"),
        ({"a": (X, Y), "b": (X[:, :2], Y)}, r"samples of 'b' are \(1, 2\).*those of 'a'"),
        ({"a": (X, Y), "b": 7}, "train of 'b': cannot use int as data"),
        ({"a": (X[:0], Y[:0]), "b": (X, Y)}, "train of 'a': no samples; give it some, or take"),
    ],
)
def test_data_by_device_that_do_not_fit_say_whose(train: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_dataset(train, (X, Y))


def test_the_name_of_a_file_is_not_data_and_the_error_shows_where_it_goes() -> None:
    with pytest.raises(ConfigError, match=r"'my\.csv' is a name.*data=\{'name': 'csv'"):
        as_dataset("my.csv", (X, Y))


def test_a_data_frame_is_told_how_its_rows_are_given() -> None:
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "label": [0, 1]})
    with pytest.raises(
        ConfigError, match=r"a DataFrame of pandas is not read; .*to_dict\('records'\)"
    ):
        as_dataset(frame, frame)
    rows, choice = frame.to_dict("records"), Choice(("a", "b"), "label")
    assert inputs(as_dataset(rows, rows, choice=choice)).tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_items_that_are_no_pairs_are_told_how_to_give_several_inputs() -> None:
    with pytest.raises(
        ConfigError, match=r"item 0 is tuple of 3, not a pair .*Task\(read=\.\.\.\)"
    ):
        as_dataset([(X[0], X[1], 0)], PAIRS)


def test_training_data_alone_are_enough_where_they_are_asked_for() -> None:
    alone = as_dataset((X, Y), train_only=True)
    assert (len(alone.train), len(alone.test), alone.classes) == (6, 0, 3)
    with pytest.raises(ConfigError, match="test part: is empty"):
        as_dataset(alone)
