from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from fedoptima.core.errors import ConfigError
from fedoptima.data.augment import CropAndFlip
from fedoptima.data.custom import as_dataset

X = torch.arange(24, dtype=torch.float32).view(6, 4)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Items(TorchDataset):
    def __init__(self, items: list[object]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> object:
        return self.items[index]


def test_float_tensors_are_used_as_they_are():
    dataset = as_dataset((X, Y), (X[:2], Y[:2]))
    assert torch.equal(dataset.prepare(dataset.train.inputs), X)
    assert (dataset.kind, dataset.classes, dataset.facts) == ("custom", 3, {"classes": 3})
    assert dataset.augment is None


def test_numpy_arrays_become_float32_and_int64_and_are_copied():
    inputs, labels = np.ones((4, 2)), np.array([0, 1, 1, 0], dtype=np.int32)
    dataset = as_dataset((inputs, labels), (inputs, labels))
    inputs[0] = 7
    assert dataset.train.inputs.dtype == torch.float32
    assert dataset.train.labels.dtype == torch.int64
    assert float(dataset.train.inputs.max()) == 1


def test_square_images_and_token_ids_are_recognised():
    images = torch.full((3, 1, 8, 8), 255, dtype=torch.uint8)
    picture = as_dataset((images, Y[:3]), (images, Y[:3]), augment=CropAndFlip(1))
    assert (picture.kind, picture.facts) == (
        "image",
        {"channels": 1, "image_size": 8, "classes": 3},
    )
    assert torch.equal(picture.prepare(images), torch.ones(3, 1, 8, 8))
    ids = torch.tensor([[1, 5, 0], [2, 0, 0]], dtype=torch.int32)
    text = as_dataset((ids, Y[:2]), (ids + 1, Y[:2]))
    assert (text.kind, text.facts) == ("text", {"vocabulary": 7, "length": 3, "classes": 2})
    assert text.prepare(ids).dtype == torch.int64


@pytest.mark.parametrize("cache", [False, True])
def test_a_map_style_dataset_becomes_numbered_samples(cache: bool):
    items = Items([(np.full(3, i, np.float64), i % 2) for i in range(5)])
    test = TensorDataset(torch.zeros(2, 3), torch.tensor([0, 1]))
    dataset = as_dataset(items, test, cache=cache)
    assert dataset.train.labels.tolist() == [0, 1, 0, 1, 0]
    assert dataset.train.read().inputs[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert dataset.train.read().inputs.dtype == torch.float32


def test_a_map_style_dataset_of_token_ids_is_recognised():
    items = Items([(torch.tensor([1, 5, 0]), 0), (torch.tensor([2, 0, 0]), 1)])
    text = as_dataset(items, (torch.tensor([[6, 1, 1]]), Y[:1]))
    assert (text.kind, text.facts) == ("text", {"vocabulary": 7, "length": 3, "classes": 2})


def test_a_dataset_is_given_back_as_it_is():
    dataset = as_dataset((X, Y), (X, Y))
    assert as_dataset(dataset) is dataset
    with pytest.raises(ConfigError, match="leave out the test argument"):
        as_dataset(dataset, (X, Y))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ((X, Y[:5]), "6 inputs but 5 labels"),
        ((X, Y.float()), "labels are torch.float32; give integer class numbers"),
        ((X, Y - 1), "labels run from -1 to 1"),
        ((X, Y[:, None]), r"labels are \(6, 1\)"),
        ((X[:0], Y[:0]), "training part: is empty"),
        ((torch.tensor(1.0), Y), "inputs are a single number"),
        ((X[:, :3], Y), r"training samples have shape \(3,\), test samples \(4,\)"),
        (("text", Y), "inputs is str; turn it into a tensor"),
        ((X, np.array(["cat", "dog"] * (len(Y) // 2))), "labels are texts; give numbers: names of"),
        (7, "cannot use int as data"),
        (Items([]), "is empty"),
        (Items([(X[0], 0), (X[0, :2], 1)]), r"item 1 is \(2,\) .* before it are \(4,\)"),
        (Items([(X[0], 0), (X[0].int(), 1)]), r"item 1 is \(4,\) torch.int32"),
        (Items([(X[0], 0), {"x": 1}]), "item 1: none of the columns x is called 'label'"),
        (Items([(X[0], 0), X[0]]), "item 1 is Tensor, not a pair"),
        (Items([(X[0], 0), (X[0], [1, 2])]), r"label of item 1 has shape \(2,\)"),
        (Items([(object(), 0)]), "item 0 is object; turn it into a tensor"),
        (Items([(X[0], 0.5)]), "labels are torch.float64; give integer class numbers"),
    ],
)
def test_wrong_data_says_what_is_wrong(train: object, message: str):
    with pytest.raises(ConfigError, match=message):
        as_dataset(train, (X, Y))


def test_a_device_without_a_single_sample_is_told_so():
    with pytest.raises(ConfigError, match="training part: is empty; give at least one sample"):
        as_dataset((X[:0], Y[:0]), None, name="mine", train_only=True)


def test_no_test_data_is_an_error():
    with pytest.raises(ConfigError, match="no test data"):
        as_dataset((X, Y))


def test_classes_may_be_more_than_the_labels_show_but_not_fewer():
    assert as_dataset((X, Y), (X, Y), classes=10).classes == 10
    with pytest.raises(ConfigError, match="labels run from 0 to 2, but 2 classes"):
        as_dataset((X, Y), (X, Y), classes=2)


def test_negative_token_ids_are_an_error():
    with pytest.raises(ConfigError, match="token ids go down to -1"):
        as_dataset((torch.tensor([[1, -1]]), Y[:1]), (torch.tensor([[1, 1]]), Y[:1]))
