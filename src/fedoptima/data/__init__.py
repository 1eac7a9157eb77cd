"""Data sets, their division over the devices, and the batches a device trains on."""

from __future__ import annotations

from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset, Split
from fedoptima.data.loader import Loader
from fedoptima.data.partition import by_file, by_mapping, dirichlet, iid
from fedoptima.data.registry import DATASETS, available, load_dataset
from fedoptima.data.validation import hold_out

__all__ = [
    "DATASETS",
    "Dataset",
    "Loader",
    "Split",
    "as_dataset",
    "available",
    "by_file",
    "by_mapping",
    "dirichlet",
    "hold_out",
    "iid",
    "load_dataset",
]
