"""What a user may give as data, opened: samples in memory, or a numbered dataset to draw from.

A DataLoader stands for its dataset: the batches of a run are made by its devices. What can only be
read in order is read once and kept in memory, up to a bound.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Split
from fedoptima.data.items import Source
from fedoptima.data.rows import Choice, without_batch
from fedoptima.data.tensors import as_inputs, as_labels, joined
from fedoptima.models.activation import Inputs, map_tensors, shapes_in_words, tensors_of

LOG = logging.getLogger("fedoptima.data")

WAYS = (
    "give (inputs, labels) as tensors or numpy arrays, a torch Dataset of (x, y), a DataLoader, or "
    "a Hugging Face dataset"
)
MOST_BYTES = 4 * 2**30  # of samples that can only be read in order
_PLAIN_COLLATE = (default_collate, default_convert)


def opened(data: object, where: str, choice: Choice) -> Split | Any:
    """A Split, or something with ``__getitem__`` and ``__len__`` whose items are still to be read.

    A list is read at once: nothing in it is left to chance.
    """
    if isinstance(data, Split):
        return data
    if isinstance(data, str | Path):
        raise ConfigError(
            f"{where}: {str(data)!r} is a name; {WAYS}. A file is named without train and test: "
            "data={'name': 'csv', 'directory': 'data', 'file': 'patients.csv', 'label': 'state'}"
        )
    if hasattr(data, "iloc"):
        raise ConfigError(
            f"{where}: a {type(data).__name__} of pandas is not read; give its rows: "
            "frame.to_dict('records'), and name its columns: data={'label': ..., 'features': [...]}"
        )
    if isinstance(data, tuple | list) and len(data) == 2 and not choice.is_row(data[0]):
        return Split(as_inputs(data[0], where), as_labels(data[1], where))
    if isinstance(data, DataLoader):
        return opened(_unwrapped(data, where), where, choice)
    in_memory = _tensors_of(data)
    if in_memory is not None:
        return Split(as_inputs(in_memory[0], where), as_labels(in_memory[1], where))
    if _is_stream(data):
        return _read_stream(data, where, choice)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping):
        return data
    raise ConfigError(f"{where}: cannot use {type(data).__name__} as data; {WAYS}")


def _tensors_of(data: object) -> tuple[Tensor, Tensor] | None:
    """Inputs and labels of a TensorDataset or a part of one, which are in memory already."""
    if type(data) is TensorDataset and len(data.tensors) == 2:
        inputs, labels = data.tensors
        return inputs, labels
    if type(data) is Subset:
        whole = _tensors_of(data.dataset)
        rows = torch.as_tensor(list(data.indices), dtype=torch.int64)
        return (whole[0][rows], whole[1][rows]) if whole is not None else None
    return None


# ---- parts of several devices --------------------------------------------------------------------


def chained(parts: Mapping[str, Any]) -> Split | Any:
    """What was opened for each device, one after the other."""
    splits = {name: part for name, part in parts.items() if isinstance(part, Split)}
    if len(splits) < len(parts):
        pieces: list[Any] = [
            _Numbered(part) if isinstance(part, Split) else part for part in parts.values()
        ]
        return ConcatDataset(pieces)
    first = next(iter(splits))
    for name, split in splits.items():
        words = [shapes_in_words(each.example) for each in (split, splits[first])]
        if words[0] != words[1]:
            raise ConfigError(
                f"train: samples of {name!r} are {words[0]}, those of {first!r} are {words[1]}; "
                "all must be alike"
            )
    inputs = joined([split.inputs for split in splits.values()], torch.cat)
    return Split(inputs, torch.cat([split.labels for split in splits.values()]))


@dataclass(frozen=True, eq=False)
class _Numbered:
    split: Split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> tuple[Any, Tensor]:
        return map_tensors(self.split.inputs, lambda tensor: tensor[row]), self.split.labels[row]


# ---- a DataLoader --------------------------------------------------------------------------------


def _unwrapped(loader: DataLoader[Any], where: str) -> Any:
    data: Any = loader.dataset
    stream, sampler, batches = _is_stream(data), loader.sampler, loader.batch_sampler
    if type(batches) is BatchSampler:
        sampler = batches.sampler  # the DataLoader's own, unless batches were given to it
    if not stream and not hasattr(data, "__len__"):
        return data  # which is no data set, and is refused as such
    known = stream or (type(sampler) is SequentialSampler and len(sampler) == len(data))
    if isinstance(sampler, RandomSampler):
        known = not sampler.replacement and sampler.num_samples == len(data)
    if not known or type(batches) not in (BatchSampler, type(None)):
        chooser = batches if known else sampler
        raise ConfigError(
            f"{where}: the DataLoader's {type(chooser).__name__} chooses which samples are drawn, "
            "but here each device goes through all of its own; give the dataset, or a Subset of it"
        )
    size = batches.batch_size if type(batches) is BatchSampler else loader.batch_size
    if size not in (None, 1):  # 1 is the default: nobody has asked for it
        LOG.warning(
            "%s: a DataLoader stands for its dataset; batches have training.batch_size samples, "
            "not its %d",
            where,
            size,
        )
    if loader.collate_fn in _PLAIN_COLLATE:
        return data
    return (
        _CollatedStream(data, loader.collate_fn) if stream else _Collated(data, loader.collate_fn)
    )


@dataclass(frozen=True, eq=False)
class _Collated:
    """Each sample as the DataLoader's own function makes it of a batch of one."""

    data: Any
    collate: Any

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Any:
        return without_batch(self.collate([self.data[number]]))


@dataclass(frozen=True, eq=False)
class _CollatedStream:
    data: Any
    collate: Any

    def __iter__(self) -> Iterator[Any]:
        return (without_batch(self.collate([item])) for item in self.data)


# ---- what can only be read in order --------------------------------------------------------------


def _is_stream(data: object) -> bool:
    if isinstance(data, IterableDataset):
        return True
    return isinstance(data, Iterable) and not hasattr(data, "__getitem__")


def _read_stream(data: Any, where: str, choice: Choice) -> Split:
    inputs: list[Inputs] = []
    labels: list[Tensor] = []
    held = 0
    for x, y in Source(data, where, choice).stream():
        held += sum(tensor.nbytes for tensor in tensors_of(x))
        if held > MOST_BYTES:
            raise ConfigError(
                f"{where}: {type(data).__name__} can only be read in order, so it is kept in "
                f"memory, and its first {len(inputs):,} samples take {MOST_BYTES / 2**30:.3g} GiB "
                "already; give a map-style Dataset, or fewer samples (itertools.islice)"
            )
        inputs.append(x)
        labels.append(y)
    if not inputs:
        raise ConfigError(f"{where}: is empty; give at least one sample")
    return Split(joined(inputs, torch.stack), torch.stack(labels))
