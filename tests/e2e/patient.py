"""Honest devices' data: after some epochs it comes only once a file is there.

So a run lasts as long as a test has something to do to it, and then comes to its end.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset
from tests.e2e.tiny import pictures
from tests.support.network import until


class Patient(TorchDataset[tuple[Tensor, Tensor]]):
    def __init__(self, samples: int, gate: str, free: int) -> None:
        self._inputs, self._labels = pictures(samples, seed=0)
        self._gate = Path(gate)
        self._free = free  # draws in one process before the gate
        self._drawn = 0

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self._drawn += 1
        if self._drawn > self._free:
            until(self._gate.exists, "the gate is open")
        return self._inputs[index], self._labels[index]


def data(gate: str, free: int, samples: int = 96) -> Dataset:
    return as_dataset(Patient(samples, gate, free), pictures(48, seed=1))
