"""The user's own data: tensors, numpy arrays or a map-style torch Dataset, as one Dataset.

Data that are in memory already stay there; items of a map-style Dataset are drawn (`data.items`).
The model gets what the user gives, with three conversions: float64 becomes float32 (the default of
numpy, but not of models), bytes become floats in 0..1, integer tokens become int64.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset

from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import (
    Augment,
    Dataset,
    Kind,
    Normalise,
    Prepare,
    Samples,
    Split,
    as_given,
    image_facts,
    text_facts,
    token_ids,
)
from fedoptima.data.items import read_all, survey
from fedoptima.data.tensors import as_inputs, as_labels

_WAYS = "give (inputs, labels) as tensors or numpy arrays, or a map-style torch Dataset of (x, y)"


def as_dataset(
    train: object,
    test: object = None,
    *,
    name: str = "custom",
    classes: int | None = None,
    prepare: Prepare | None = None,
    augment: Augment | None = None,
    cache: bool = False,
) -> Dataset:
    """A checked Dataset of the user's training and test data; a Dataset is returned unchanged.

    Training items of a map-style dataset are drawn each time they are used, unless ``cache`` asks
    for one draw that is kept in memory. Test items always are: all evaluations see the same.
    """
    if isinstance(train, Dataset):
        if test is not None:
            raise ConfigError(
                f"data set {train.name!r} has its own test part; leave out the test argument"
            )
        return train.check()
    if test is None:
        raise ConfigError(f"{name}: no test data; {_WAYS} as test too")
    train_split = _samples(train, f"{name}, train", cache=cache)
    test_split = _samples(test, f"{name}, test", cache=True).read()
    labels = (train_split.labels, test_split.labels)
    largest = max((int(part.max()) for part in labels if len(part)), default=0)
    classes = classes if classes is not None else largest + 1
    kind, facts, usual_prepare = _describe(train_split, test_split, classes)
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


def _describe(train: Samples, test: Split, classes: int) -> tuple[Kind, dict[str, int], Prepare]:
    example = train.example
    if not isinstance(example, Tensor):
        return "custom", {"classes": classes}, as_given
    prepare = Normalise() if example.dtype == torch.uint8 and example.dim() == 4 else as_given
    if example.dim() == 4 and example.shape[2] == example.shape[3]:
        return "image", image_facts(example, classes), prepare
    if example.dim() == 2 and example.dtype in (torch.int32, torch.int64):
        (low, high), (test_low, test_high) = train.extent, test.extent
        least = int(min(low, test_low))
        if least < 0:
            raise ConfigError(f"token ids go down to {least}; 0 is the padding, the least")
        return "text", text_facts(example, 1 + int(max(high, test_high)), classes), token_ids
    return "custom", {"classes": classes}, prepare


def _samples(data: object, where: str, *, cache: bool) -> Samples:
    if isinstance(data, Split):
        return data
    if isinstance(data, tuple | list) and len(data) == 2:
        return _pair(data[0], data[1], where)
    if isinstance(data, IterableDataset):
        raise ConfigError(f"{where}: an IterableDataset has no sample numbers to divide; {_WAYS}")
    in_memory = _tensors_of(data)
    if in_memory is not None:
        return _pair(*in_memory, where)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        # Nothing in a list is left to chance.
        return read_all(data, where) if cache or type(data) is list else survey(data, where)
    raise ConfigError(f"{where}: cannot use {type(data).__name__} as data; {_WAYS}")


def _pair(inputs: object, labels: object, where: str) -> Split:
    return Split(as_inputs(inputs, where), as_labels(labels, where))


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
