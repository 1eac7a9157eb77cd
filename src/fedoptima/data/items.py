"""The user's map-style dataset, whose items are drawn each time they are used.

A random transform in the dataset then acts in every epoch. An item depends on the run's seed, the
epoch and its number, and on nothing that was drawn before: torch's, numpy's and Python's global
generators are seeded for each item, and put back afterwards. (A generator of the dataset's own is
out of reach; its draws are not repeatable.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError, FedOptimaError
from fedoptima.core.seeding import derive
from fedoptima.data.dataset import Split
from fedoptima.data.finite import check_inputs, rows_in_words, rows_not_finite
from fedoptima.data.tensors import as_class_number, as_tensor, narrowed
from fedoptima.data.workers import Workers

Drawn = tuple[Tensor, Tensor]
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Source:
    """Where items come from, and what all of them are like; goes to worker processes as it is."""

    data: Any  # has __getitem__
    where: str

    def items(self, numbers: Sequence[int], seeds: Sequence[int]) -> Iterator[Drawn]:
        """Input and label of each, one after the other."""
        first: Tensor | None = None
        with _generators_put_back():
            for number, seed in zip(numbers, seeds, strict=True):
                torch.default_generator.manual_seed(seed)
                np.random.seed(seed % 2**32)
                random.seed(seed)
                x, y = self._item(number)
                first = x if first is None else first
                if x.shape != first.shape or x.dtype != first.dtype:
                    raise ConfigError(
                        f"{self.where}: item {number} is {tuple(x.shape)} {x.dtype}, the items "
                        f"before it are {tuple(first.shape)} {first.dtype}; all must be alike: "
                        "resize or pad them"
                    )
                yield x, y

    def batch(self, numbers: Sequence[int], seeds: Sequence[int]) -> Drawn:
        inputs, labels = zip(*self.items(numbers, seeds), strict=True)
        return torch.stack(inputs), torch.stack(labels)

    def _item(self, number: int) -> Drawn:
        try:
            item = self.data[number]
        except FedOptimaError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self.where}: item {number} cannot be read: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ConfigError(
                f"{self.where}: item {number} is {type(item).__name__}, not a pair (x, y)"
            )
        x = as_tensor(item[0], f"{self.where}: item {number}")
        return narrowed(x), as_class_number(item[1], f"{self.where}: the label of item {number}")


@contextmanager
def _generators_put_back() -> Iterator[None]:
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


@dataclass(frozen=True, eq=False)
class Items:
    """A split whose inputs are not held, only its labels."""

    source: Source
    numbers: Tensor  # of the items in the source, in this split's order
    labels: Tensor
    example: Tensor  # one input, as a batch
    extent: tuple[float, float]  # the least and the greatest value in any input
    device: torch.device = CPU  # where batches go
    workers: Workers | None = None

    index_device = CPU

    @property
    def in_advance(self) -> bool:
        return self.workers is not None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Items:
        return replace(self, numbers=self.numbers[rows], labels=self.labels[rows])

    def to(self, device: torch.device | str) -> Items:
        return replace(self, device=torch.device(device))

    def with_workers(self, count: int) -> Items:
        return replace(self, workers=Workers(count, self.source) if count else None)

    def read(self) -> Split:
        """All of it in memory, each item as it is drawn at load."""
        inputs, labels = self.source.batch(self.numbers.tolist(), _at_load(self.numbers.tolist()))
        return Split(inputs, labels).to(self.device)

    def order(self, rows: Tensor, *, seed: int, epoch: int) -> Callable[[], Drawn]:
        """The drawing of a batch; workers begin it at once, otherwise it begins when called."""
        numbers: list[int] = self.numbers[rows].tolist()
        seeds = [derive(seed, "item", epoch, number) for number in numbers]
        if self.workers is not None:
            draw = self.workers.order(numbers, seeds)
        else:

            def draw() -> Drawn:
                return self.source.batch(numbers, seeds)

        return lambda: self._checked(numbers, self.labels[rows], *draw())

    def _checked(self, numbers: list[int], known: Tensor, inputs: Tensor, labels: Tensor) -> Drawn:
        where = self.source.where
        if inputs.shape[1:] != self.example.shape[1:] or inputs.dtype != self.example.dtype:
            raise ConfigError(
                f"{where}: items {numbers[0]} to {numbers[-1]} are {tuple(inputs.shape[1:])} "
                f"{inputs.dtype}, and were {tuple(self.example.shape[1:])} {self.example.dtype} "
                "when the data were loaded"
            )
        bad = rows_not_finite(inputs)
        if bad:
            raise ConfigError(
                f"{where}: inputs are NaN or infinite in {rows_in_words([numbers[i] for i in bad])}"
                " as drawn now; look at the dataset's transforms"
            )
        changed = (labels != known).nonzero().flatten().tolist()
        if changed:
            at = changed[0]
            raise ConfigError(
                f"{where}: the label of item {numbers[at]} is {int(labels[at])}, and was "
                f"{int(known[at])} when the data were loaded; a label must not change by chance"
            )
        return inputs.to(self.device), labels.to(self.device)


def survey(data: Any, where: str) -> Items:
    """Draws every item once, for its label and to check it, and keeps no input."""
    source, numbers = Source(data, where), list(range(len(data)))
    labels: list[Tensor] = []
    example: Tensor | None = None
    low, high = float("inf"), float("-inf")
    bad: list[int] = []
    for number, (x, y) in enumerate(source.items(numbers, _at_load(numbers))):
        example = x.unsqueeze(0).clone() if example is None else example
        labels.append(y)
        if rows_not_finite(x.unsqueeze(0)):
            bad.append(number)
        elif not x.is_complex() and x.numel():
            least, most = (float(end) for end in x.aminmax())
            low, high = min(low, least), max(high, most)
    if example is None:
        raise ConfigError(f"{where}: is empty; give at least one sample")
    if bad:
        raise ConfigError(
            f"{where}: inputs are NaN or infinite in {rows_in_words(bad)}; correct or leave out "
            "these samples"
        )
    return Items(source, torch.arange(len(labels)), torch.stack(labels), example, (low, high))


def read_all(data: Any, where: str) -> Split:
    """Every item in memory, for good."""
    numbers = list(range(len(data)))
    if not numbers:
        raise ConfigError(f"{where}: is empty; give at least one sample")
    inputs, labels = Source(data, where).batch(numbers, _at_load(numbers))
    check_inputs(inputs, where)
    return Split(inputs, labels)


def _at_load(numbers: Sequence[int]) -> list[int]:
    """Not the run's seed: data are loaded before it is known, and a test part stays as it is."""
    return [derive(0, "item", "at load", number) for number in numbers]
