"""The user's map-style dataset, whose items are drawn each time they are used.

A random transform in the dataset then acts in every epoch. An item depends on the run's seed, the
epoch and its number, and on nothing that was drawn before: torch's, numpy's and Python's global
generators are seeded for each item, and put back afterwards. (A generator of the dataset's own is
out of reach; its draws are not repeatable.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from fedoptima.data.rows import Choice
from fedoptima.data.tensors import as_label, as_sample, joined
from fedoptima.data.workers import Workers
from fedoptima.models.activation import Inputs, map_tensors, shapes_in_words, tensors_of

Drawn = tuple[Inputs, Tensor]
CPU = torch.device("cpu")
_USUAL = Choice()


@dataclass(frozen=True, eq=False)
class Source:
    """Where items come from, and what all of them are like; goes to worker processes as it is."""

    data: Any  # has __getitem__, or __iter__ if it is read as a stream
    where: str
    choice: Choice = _USUAL  # of columns, where items are rows

    def items(self, numbers: Sequence[int], seeds: Sequence[int]) -> Iterator[Drawn]:
        """Input and label of each, one after the other."""
        with _generators_put_back():
            yield from self._alike(
                (number, self._item(number, seed))
                for number, seed in zip(numbers, seeds, strict=True)
            )

    def stream(self) -> Iterator[Drawn]:
        """What comes from it in order, until it ends."""
        with _generators_put_back():
            _seed_generators(_at_load([0])[0])
            yield from self._alike(self._numbered())

    def _alike(self, items: Iterable[tuple[int, Drawn]]) -> Iterator[Drawn]:
        first, labelled = "", torch.Size()
        for number, (x, y) in items:
            words = shapes_in_words(x)
            if not first:
                first, labelled = words, y.shape
            if y.shape != labelled:
                raise ConfigError(
                    f"{self.where}: the label of item {number} has shape {tuple(y.shape)}, those "
                    f"before it have {tuple(labelled)}; all must be alike"
                )
            if words != first:
                raise ConfigError(
                    f"{self.where}: item {number} is {words}, the items before it are {first}; "
                    "all must be alike: resize or pad them"
                )
            yield x, y

    def batch(self, numbers: Sequence[int], seeds: Sequence[int]) -> Drawn:
        inputs, labels = zip(*self.items(numbers, seeds), strict=True)
        return joined(inputs, torch.stack), torch.stack(labels)

    def _item(self, number: int, seed: int) -> Drawn:
        _seed_generators(seed)
        with self._reading(number):
            item = self.data[number]
        return self._converted(item, number)

    def _numbered(self) -> Iterator[tuple[int, Drawn]]:
        number, items = 0, iter(self.data)
        while True:
            with self._reading(number):
                item = next(items, _END)
            if item is _END:
                return
            yield number, self._converted(item, number)
            number += 1

    @contextmanager
    def _reading(self, number: int) -> Iterator[None]:
        try:
            yield
        except FedOptimaError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self.where}: item {number} cannot be read: {type(error).__name__}: {error}"
            ) from error

    def _converted(self, item: Any, number: int) -> Drawn:
        where = f"{self.where}: item {number}"
        if isinstance(item, Mapping):
            item = self.choice.pair(item, where)
        if not isinstance(item, tuple | list) or len(item) != 2:
            length = f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise ConfigError(
                f"{where} is {type(item).__name__}{length}, not a pair (x, y); several inputs are "
                "one x, a tuple or a dict of tensors, and Task(read=...) makes pairs of other items"
            )
        label = as_label(item[1], f"{self.where}: the label of item {number}")
        return as_sample(item[0], where), label


_END = object()


def _seed_generators(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


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
    example: Inputs  # one input, as a batch
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

    def with_labels(self, labels: Tensor) -> Items:
        return replace(self, labels=labels)

    def with_workers(self, count: int) -> Items:
        return replace(self, workers=Workers(count, self.source) if count else None)

    def read(self) -> Split:
        """All of it in memory, each item as it is drawn at load."""
        inputs, _ = self.source.batch(self.numbers.tolist(), _at_load(self.numbers.tolist()))
        return Split(inputs, self.labels).to(self.device)

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

    def _checked(self, numbers: list[int], known: Tensor, inputs: Inputs, labels: Tensor) -> Drawn:
        where = self.source.where
        now, then = (
            shapes_in_words(map_tensors(each, lambda tensor: tensor[0]))
            for each in (inputs, self.example)
        )
        if now != then:
            raise ConfigError(
                f"{where}: items {numbers[0]} to {numbers[-1]} are {now}, and were {then} when the "
                "data were loaded"
            )
        bad = sorted({row for tensor in tensors_of(inputs) for row in rows_not_finite(tensor)})
        if bad:
            raise ConfigError(
                f"{where}: inputs are NaN or infinite in {rows_in_words([numbers[i] for i in bad])}"
                " as drawn now; look at the dataset's transforms"
            )
        changed = (labels != known).reshape(len(known), -1).any(1).nonzero().flatten().tolist()
        if changed:
            at = changed[0]
            raise ConfigError(
                f"{where}: the label of item {numbers[at]} is {_words(labels[at])}, and was "
                f"{_words(known[at])} when the data were loaded; a label must not change by chance"
            )
        there = map_tensors(inputs, lambda tensor: tensor.to(self.device))
        return there, known.to(self.device)  # in the task's own format


def _words(label: Tensor) -> str:
    return f"{label.item():g}" if label.numel() == 1 else f"{label.tolist()!r:.40}"


def survey(data: Any, where: str, choice: Choice = _USUAL) -> Items:
    """Draws every item once, for its label and to check it, and keeps no input."""
    source, numbers = Source(data, where, choice), list(range(len(data)))
    labels: list[Tensor] = []
    example: Inputs | None = None
    low, high = float("inf"), float("-inf")
    bad: list[int] = []
    for number, (x, y) in enumerate(source.items(numbers, _at_load(numbers))):
        if example is None:
            example = map_tensors(x, lambda tensor: tensor.unsqueeze(0).clone())
        labels.append(y)
        for tensor in tensors_of(x):
            if rows_not_finite(tensor.unsqueeze(0)):
                bad.append(number)
            elif not tensor.is_complex() and tensor.numel():
                least, most = (float(end) for end in tensor.aminmax())
                low, high = min(low, least), max(high, most)
    if example is None:
        raise ConfigError(f"{where}: is empty; give at least one sample")
    if bad:
        raise ConfigError(
            f"{where}: inputs are NaN or infinite in {rows_in_words(bad)}; correct or leave out "
            "these samples"
        )
    return Items(source, torch.arange(len(labels)), torch.stack(labels), example, (low, high))


def read_all(data: Any, where: str, choice: Choice = _USUAL) -> Split:
    """Every item in memory, for good."""
    numbers = list(range(len(data)))
    if not numbers:
        raise ConfigError(f"{where}: is empty; give at least one sample")
    inputs, labels = Source(data, where, choice).batch(numbers, _at_load(numbers))
    for tensor in tensors_of(inputs):
        check_inputs(tensor, where)
    return Split(inputs, labels)


def _at_load(numbers: Sequence[int]) -> list[int]:
    """Not the run's seed: data are loaded before it is known, and a test part stays as it is."""
    return [derive(0, "item", "at load", number) for number in numbers]
