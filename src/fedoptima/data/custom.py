"""The user's own data, in any of the forms that `data.sources` opens, as one Dataset.

Data that are in memory already stay there; items of a map-style Dataset are drawn (`data.items`).
The model gets what the user gives, with three conversions: float64 becomes float32 (the default of
numpy, but not of models), bytes become floats in 0..1, integer tokens become int64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fedoptima.core.errors import ConfigError
from fedoptima.data.columns import DEVICE, Columns
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
from fedoptima.data.reading import as_read
from fedoptima.data.rows import Choice, columns_of, is_dataset_dict, known_classes
from fedoptima.data.sources import WAYS, chained, opened
from fedoptima.models.activation import map_tensors
from fedoptima.tasks.ready import CLASSIFICATION
from fedoptima.tasks.task import Task

_USUAL = Choice()
_TEST_PARTS = ("test", "validation")  # of a DatasetDict: the first that is there


def as_dataset(
    train: object,
    test: object = None,
    *,
    name: str = "custom",
    classes: int | None = None,
    prepare: Prepare | None = None,
    augment: Augment | None = None,
    cache: bool = False,
    choice: Choice = _USUAL,
    columns: Mapping[str, Sequence[object]] | None = None,
    train_only: bool = False,
    task: Task = CLASSIFICATION,
) -> Dataset:
    """A checked Dataset of the user's training and test data; a Dataset is returned unchanged.

    Training items of a map-style dataset are drawn each time they are used, unless ``cache`` asks
    for one draw that is kept in memory. Test items always are: all evaluations see the same.

    ``train`` may be data by the name of the device that holds them; the column `DEVICE` then has
    these names. ``choice``: of columns, where samples are rows. ``columns``: what else is known of
    the training samples, one value for each. ``train_only``: test data may be missing.
    """
    if isinstance(train, Dataset):
        if test is not None:
            raise ConfigError(
                f"data set {train.name!r} has its own test part; leave out the test argument"
            )
        return train.for_task(task).check(train_only=train_only)
    if is_dataset_dict(train):
        train, test = _parts(train, test, name)
    if test is None and not train_only:
        raise ConfigError(f"{name}: no test data; {WAYS} as test too")
    parts = _by_device(train, name)
    opened_parts = {
        device: opened(as_read(part, task.read), _where(name, device), choice)
        for device, part in parts.items()
    }
    for device, part in opened_parts.items():
        if device and len(part) == 0:
            raise ConfigError(
                f"{_where(name, device)}: no samples; give it some, or take it out of the fleet"
            )
    whole = opened_parts[""] if "" in parts else chained(opened_parts)
    train_split = _samples(whole, f"{name}, train", cache=cache, choice=choice)
    if test is None:
        nothing = map_tensors(train_split.example, lambda tensor: tensor[:0])
        test_split = Split(nothing, train_split.labels[:0])
    else:
        where, data = f"{name}, test", as_read(test, task.read)
        test_split = _samples(opened(data, where, choice), where, cache=True, choice=choice).read()
    train_split = train_split.with_labels(_labels(train_split, task, f"{name}, train"))
    test_split = test_split.with_labels(_labels(test_split, task, f"{name}, test"))
    if classes is None:
        classes = _classes((*parts.values(), test), (train_split, test_split), choice, task)
    kind, facts, usual_prepare = _describe(train_split, test_split, classes)
    known = Columns.of(dict(columns), len(train_split)) if columns is not None else None
    return Dataset(
        name=name,
        kind=kind,
        train=train_split,
        test=test_split,
        classes=classes,
        facts=facts,
        prepare=prepare or usual_prepare,
        augment=augment,
        columns=known or _columns(parts, opened_parts),
        task=task,
    ).check(train_only=train_only)


def _parts(train: Any, test: object, name: str) -> tuple[object, object]:
    """Of a DatasetDict."""
    for part in _TEST_PARTS if test is None else ():
        if part in train:
            test = train[part]
            break
    if "train" not in train:
        raise ConfigError(
            f"{name}: the DatasetDict has no part 'train'; it has {', '.join(train)}: give one of "
            "them as train"
        )
    return train["train"], test


def _by_device(train: object, name: str) -> dict[str, object]:
    """Data by device; under "" where they are not yet divided."""
    if not isinstance(train, Mapping):
        return {"": train}
    if not train or not all(isinstance(device, str) and device for device in train):
        raise ConfigError(
            f"{name}, train: a dict holds data by the name of the device, not {list(train)!r:.60}"
        )
    return dict(train)


def _where(name: str, device: str) -> str:
    return f"{name}, train" if not device else f"{name}, train of {device!r}"


def _classes(given: Sequence[object], splits: Sequence[Samples], choice: Choice, task: Task) -> int:
    """As many as a label column has names for, or as the labels show."""
    data = [each.dataset if isinstance(each, DataLoader) else each for each in given]
    named = max((known_classes(each, choice) or 0 for each in data), default=0)
    shown = (task.classes_in(split.labels) for split in splits if len(split))
    return max((named, *shown))


def _columns(parts: Mapping[str, object], opened_parts: Mapping[str, Any]) -> Columns | None:
    if "" in parts:
        data = parts[""]
        found = columns_of(data.dataset if isinstance(data, DataLoader) else data)
        return None if found is None else Columns(*found)
    names = [device for device, part in opened_parts.items() for _ in range(len(part))]
    return Columns((DEVICE,), {DEVICE: names}, by_device=True)


def _samples(data: Split | Any, where: str, *, cache: bool, choice: Choice) -> Samples:
    if isinstance(data, Split):
        return data
    # Nothing in a list is left to chance.
    read = read_all if cache or type(data) is list else survey
    return read(data, where, choice)


def _labels(samples: Samples, task: Task, where: str) -> Tensor:
    return task.as_labels(samples.labels, f"{where}: labels are")


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
            raise ConfigError(
                f"token ids go down to {least}; 0 is the padding, the least. If these are numbers "
                "and no token ids, give them as such: inputs.float()"
            )
        return "text", text_facts(example, 1 + int(max(high, test_high)), classes), token_ids
    return "custom", {"classes": classes}, prepare
