"""scikit-learn's digits: real, small and offline, so everything can be tried without a download.

The set comes without a split. Every fifth sample of each class is the test part: stratified,
without random numbers, the same everywhere.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Dataset, Split
from fedoptima.data.finite import class_numbers, rows_in_words
from fedoptima.data.images import ImageSource
from fedoptima.data.layouts import Layout, Part, ReadingProgress, reading

_TEST_EVERY = 5
_FILE = "digits.csv.gz"

DigitRows = tuple[NDArray[np.float64], NDArray[np.number]]  # pixels and labels


@dataclass(frozen=True, kw_only=True)
class Digits(ImageSource):
    """Read from a data directory that has the file, else from the installed scikit-learn."""

    def load(
        self, directory: str | Path | None, options: Mapping[str, object], progress: ReadingProgress
    ) -> Dataset:
        if self.find(directory) is not None or find_spec("sklearn") is None:
            return super().load(directory, options, progress)
        self.resolve(options)
        pixels, labels = _installed()
        return self.assemble(_part(pixels, labels, "train"), _part(pixels, labels, "test"))


def _installed() -> DigitRows:
    """scikit-learn's file, without loading scikit-learn: that takes longer than all the rest."""
    found = find_spec("sklearn")
    assert found is not None
    for folder in found.submodule_search_locations or ():
        path = Path(folder) / "datasets" / "data" / _FILE
        if path.is_file():
            return _table(path)
    from sklearn.datasets import load_digits  # it has moved its file

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels


def _read(folder: Path, part: Part, progress: ReadingProgress) -> Split:
    return _part(*_table(folder / _FILE), part)


def _table(path: Path) -> DigitRows:
    with reading(path):
        with gzip.open(path, "rt", encoding="ascii") as lines:
            table = np.loadtxt(lines, delimiter=",", ndmin=2)
        if table.shape[1] != 65:
            raise ValueError(f"{table.shape[1]} columns instead of 64 pixels and a label")
    return table[:, :64], table[:, 64]


def _part(pixels: NDArray[np.float64], labels: NDArray[np.number], part: Part) -> Split:
    outside = np.flatnonzero(~((pixels >= 0) & (pixels <= 16)).all(axis=1))
    if len(outside):
        raise ConfigError(
            f"digits: pixel values are not in 0..16 in {rows_in_words(outside.tolist())}; the "
            "file is damaged"
        )
    classes = class_numbers(labels.tolist(), "digits").numpy()
    test = np.zeros(len(classes), dtype=bool)
    for label in np.unique(classes):
        test[np.flatnonzero(classes == label)[_TEST_EVERY - 1 :: _TEST_EVERY]] = True
    rows = test if part == "test" else ~test
    images = pixels.astype(np.uint8).reshape(-1, 1, 8, 8)
    return Split(torch.from_numpy(images[rows]), torch.from_numpy(classes[rows]))


DIGITS_CSV: Layout[Split] = Layout(("digits",), (_FILE,), _read)
