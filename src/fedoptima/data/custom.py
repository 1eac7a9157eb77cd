"""The user's own data: tensors, numpy arrays or a map-style torch Dataset, as one Dataset.

The model gets what the user gives, with three conversions: float64 becomes float32 (the default of
numpy, but not of models), bytes become floats in 0..1, integer tokens become int64.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import (
    Augment,
    Dataset,
    Kind,
    Normalise,
    Prepare,
    Split,
    as_given,
    image_facts,
    text_facts,
    token_ids,
)

_WAYS = "give (inputs, labels) as tensors or numpy arrays, or a map-style torch Dataset of (x, y)"


def as_dataset(
    train: object,
    test: object = None,
    *,
    name: str = "custom",
    classes: int | None = None,
    prepare: Prepare | None = None,
    augment: Augment | None = None,
) -> Dataset:
    """A checked Dataset of the user's training and test data; a Dataset is returned unchanged."""
    if isinstance(train, Dataset):
        if test is not None:
            raise ConfigError(
                f"data set {train.name!r} has its own test part; leave out the test argument"
            )
        return train.check()
    if test is None:
        raise ConfigError(f"{name}: no test data; {_WAYS} as test too")
    train_split, test_split = _split(train, f"{name}, train"), _split(test, f"{name}, test")
    largest = max((int(s.labels.max()) for s in (train_split, test_split) if len(s)), default=0)
    classes = classes if classes is not None else largest + 1
    kind, facts, usual_prepare = _describe(train_split.inputs, test_split.inputs, classes)
    return Dataset(
        name=name,
        kind=kind,
        train=train_split,
        test=test_split,
        classes=classes,
        facts=facts,
        prepare=prepare or usual_prepare,
        augment=augment,
    ).check()


def _describe(train: Tensor, test: Tensor, classes: int) -> tuple[Kind, dict[str, int], Prepare]:
    prepare = Normalise() if train.dtype == torch.uint8 and train.dim() == 4 else as_given
    if train.dim() == 4 and train.shape[2] == train.shape[3]:
        return "image", image_facts(train, classes), prepare
    if train.dim() == 2 and train.dtype in (torch.int32, torch.int64):
        ends = [end for part in (train, test) if part.numel() for end in part.aminmax()]
        if ends and min(ends) < 0:
            raise ConfigError(f"token ids go down to {int(min(ends))}; 0 is the padding, the least")
        return "text", text_facts(train, 1 + int(max(ends, default=0)), classes), token_ids
    return "custom", {"classes": classes}, prepare


def _split(data: object, where: str) -> Split:
    if isinstance(data, Split):
        return data
    if isinstance(data, tuple | list) and len(data) == 2:
        return Split(_inputs(data[0], where), _labels(data[1], where))
    if isinstance(data, IterableDataset):
        raise ConfigError(f"{where}: an IterableDataset has no sample numbers to divide; {_WAYS}")
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return _read_items(data, len(data), where)
    raise ConfigError(f"{where}: cannot use {type(data).__name__} as data; {_WAYS}")


def _read_items(data: object, count: int, where: str) -> Split:
    inputs: list[Tensor] = []
    labels: list[Tensor] = []
    for index in range(count):
        item = data[index]  # type: ignore[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ConfigError(f"{where}: item {index} is {type(item).__name__}, not a pair (x, y)")
        x, y = (
            _tensor(item[0], f"{where}: item {index}"),
            _tensor(item[1], f"{where}: label {index}"),
        )
        if inputs and (x.shape != inputs[0].shape or x.dtype != inputs[0].dtype):
            raise ConfigError(
                f"{where}: item {index} is {tuple(x.shape)} {x.dtype}, the items before it are "
                f"{tuple(inputs[0].shape)} {inputs[0].dtype}; all must be alike: resize or pad them"
            )
        if y.dim() != 0:
            raise ConfigError(
                f"{where}: the label of item {index} has shape {tuple(y.shape)}; "
                "give one integer class number"
            )
        inputs.append(x)
        labels.append(y)
    if not inputs:
        raise ConfigError(f"{where}: is empty; give at least one sample")
    return Split(_inputs(torch.stack(inputs), where), _labels(torch.stack(labels), where))


def _inputs(value: object, where: str) -> Tensor:
    inputs = _tensor(value, f"{where}: inputs")
    if inputs.dim() == 0:
        raise ConfigError(f"{where}: inputs are a single number; the first dimension is the sample")
    return inputs.to(torch.float32) if inputs.dtype == torch.float64 else inputs


def _labels(value: object, where: str) -> Tensor:
    labels = _tensor(value, f"{where}: labels")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ConfigError(
            f"{where}: labels are {labels.dtype}; give integer class numbers, 0 to classes - 1"
        )
    return labels.to(torch.int64)


def _tensor(value: object, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if not isinstance(value, np.ndarray | np.generic | int | float | list | tuple):
        raise ConfigError(
            f"{where} is {type(value).__name__}; turn it into a tensor or a numpy array first"
        )
    try:
        # A copy: a later write to the user's array must not change the data of a run.
        return torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} cannot become a tensor: {error}") from error
