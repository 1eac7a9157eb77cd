"""NaN, infinite values and wrong labels are found where data enter, with their rows."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset, Split, as_given
from fedoptima.data.finite import rows_in_words, rows_not_finite
from fedoptima.data.registry import load_dataset
from fedoptima.experiments.given import given_data
from tests.data.miniature import cifar_batches, image_parquet, pixels
from tests.data.test_items import Chance

GOOD = (torch.zeros(8, 2, 3), torch.arange(8) % 2)


def spoilt(rows: list[int], value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    inputs = torch.zeros(8, 2, 3, dtype=dtype)
    inputs[rows, 1, 2] = value
    return inputs


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_inputs_that_are_not_finite_are_found_with_their_rows(
    value: float, dtype: torch.dtype
) -> None:
    bad = (spoilt([2, 5], value, dtype), GOOD[1])
    message = r"inputs are NaN or infinite in rows 2, 5; correct or leave out"
    with pytest.raises(ConfigError, match=f"training part: {message}"):
        as_dataset(bad, GOOD)
    with pytest.raises(ConfigError, match=f"test part: {message}"):
        as_dataset(GOOD, bad)


def test_finite_numbers_beyond_float32_are_found() -> None:
    inputs = np.zeros((8, 2, 3))
    inputs[3, 0, 0] = 1e300
    with pytest.raises(ConfigError, match="infinite in row 3;"):
        as_dataset((inputs, GOOD[1]), GOOD)


def test_many_rows_are_counted() -> None:
    inputs = torch.full((40, 2), float("nan"))
    assert rows_not_finite(inputs) == list(range(40))
    assert rows_in_words(rows_not_finite(inputs)) == "rows 0, 1, 2, 3, 4 and 35 more"


def test_rows_are_numbered_across_pieces() -> None:
    assert rows_not_finite(spoilt([0, 3, 7], float("nan")), at_once=12) == [0, 3, 7]


def test_labels_that_are_not_finite_are_found_with_their_rows() -> None:
    labels = np.array([0, 1, np.nan, 1, 0, 1, np.inf, 1])
    with pytest.raises(ConfigError, match="labels are NaN or infinite in rows 2, 6;"):
        as_dataset((GOOD[0], labels), GOOD)


def test_labels_outside_of_the_classes_are_found_with_their_rows() -> None:
    labels = torch.tensor([0, 1, 7, 1, 0, -1, 0, 1])
    with pytest.raises(ConfigError, match=r"run from -1 to 7, but 2 classes.*see rows 2, 5\)"):
        as_dataset((GOOD[0], labels), GOOD, classes=2)


def test_items_of_a_map_style_dataset_are_checked_at_load() -> None:
    class Bad(Chance):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            x, y = super().__getitem__(index)
            return x / (index not in (4, 9)), y

    for cache in (False, True):
        with pytest.raises(ConfigError, match="train: inputs are NaN or infinite in rows 4, 9;"):
            as_dataset(Bad(), (torch.zeros(3, 4), torch.arange(3)), cache=cache)


def test_a_label_of_an_item_that_is_not_finite_is_named() -> None:
    items = [(torch.zeros(4), 0), (torch.zeros(4), 1), (torch.zeros(4), float("nan"))]
    with pytest.raises(ConfigError, match="label of item 2 is NaN or infinite"):
        as_dataset(items, (torch.zeros(3, 4), torch.arange(3)))


def test_a_dataset_made_by_hand_is_checked_when_it_is_given() -> None:
    bad = Split(spoilt([1], float("nan")), GOOD[1])
    dataset = Dataset("own", "custom", bad, Split(*GOOD), 2, {"classes": 2}, as_given)
    with pytest.raises(ConfigError, match=r"'own', training part: inputs are NaN .* in row 1;"):
        given_data(None, None, dataset)


# ---- built-in formats ----------------------------------------------------------------------------


def digits(folder: Path, row: int, column: int, value: str) -> None:
    """A file of 20 rows, two of each class, one value of which is replaced."""
    table = [["0"] * 64 + [str(number % 10)] for number in range(20)]
    table[row][column] = value
    folder.mkdir(parents=True)
    with gzip.open(folder / "digits.csv.gz", "wt") as file:
        file.write("\n".join(",".join(line) for line in table))


@pytest.mark.parametrize("value", ["nan", "inf", "17", "-1"])
def test_a_pixel_of_digits_that_is_none_is_found_with_its_row(tmp_path: Path, value: str) -> None:
    digits(tmp_path / "digits", 13, 5, value)
    with pytest.raises(ConfigError, match=r"not in 0\.\.16 in row 13"):
        load_dataset("digits", directory=tmp_path)


@pytest.mark.parametrize("value", ["nan", "inf", "3.5"])
def test_a_label_of_digits_that_is_none_is_found_with_its_row(tmp_path: Path, value: str) -> None:
    digits(tmp_path / "digits", 13, 64, value)
    with pytest.raises(ConfigError, match=r"digits: labels .* in row 13;"):
        load_dataset("digits", directory=tmp_path)


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), 1.5])
def test_a_label_of_a_parquet_file_that_is_none_is_found_with_its_row(
    tmp_path: Path, bad: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDOPTIMA_CACHE", str(tmp_path / "cache"))
    labels: list[float | None] = [0.0, 1.0, bad, 1.0]
    for part in ("train", "test"):
        path = tmp_path / "cifar10" / f"{part}-00000-of-00001.parquet"
        image_parquet(path, pixels(4, 32, 32, 3), labels)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"cifar10: labels .* in row 2;"):
        load_dataset("cifar10", directory=tmp_path)


@pytest.mark.parametrize("bad", [None, float("nan"), 1.5])
def test_a_label_of_a_pickled_batch_that_is_none_is_found_with_its_row(
    tmp_path: Path, bad: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDOPTIMA_CACHE", str(tmp_path / "cache"))
    cifar_batches(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    content = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps(content | {b"labels": [1, bad]}, protocol=2))
    with pytest.raises(ConfigError, match=r"data_batch_2: labels .* in row 1;"):
        load_dataset("cifar10", directory=tmp_path)
