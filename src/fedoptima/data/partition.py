"""Which device holds which samples: row numbers of the training split, one sorted array per device.

No sample is assigned twice and no device is left empty. The same arguments give the same parts.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.core.seeding import derive
from fedoptima.data.dataset import Dataset, Split

Indices: TypeAlias = NDArray[np.int64]


def dirichlet(
    labels: Tensor | NDArray[np.integer], devices: int, *, alpha: float = 0.5, seed: int
) -> list[Indices]:
    """The paper's non-IID division (section 5.2), every sample to exactly one device.

    Each device has a class vector drawn from Dirichlet(alpha). Devices take turns; each turn draws
    a label from the device's vector and a sample of that label without replacement. Once a label
    has run out the vector is renormalised over the labels left; where it has no mass on any of
    them, each remaining label is equally likely.
    """
    numbers = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    check_devices(devices, len(numbers))
    _, label_of = np.unique(numbers, return_inverse=True)  # labels that no device has get no mass
    classes = int(label_of.max()) + 1
    vectors = class_vectors(classes, devices, alpha=alpha, seed=seed)

    random = np.random.default_rng(derive(seed, "partition", "dirichlet", "draws"))
    # Shuffled once, then taken from the end: the same as a uniform draw without replacement.
    piles = [
        random.permutation(np.flatnonzero(label_of == label)).tolist() for label in range(classes)
    ]
    draws: list[float] = random.random(len(numbers)).tolist()

    parts: list[list[int]] = [[] for _ in range(devices)]
    left = np.arange(classes)
    # A device's table changes only when a label runs out, and is rebuilt at its next turn.
    tables: list[list[float]] = [[] for _ in range(devices)]
    for turn, draw in enumerate(draws):
        device = turn % devices
        table = tables[device]
        if len(table) != len(left):
            table = tables[device] = _cumulative(vectors[device, left])
        chosen = bisect_right(table, draw * table[-1], hi=len(table) - 1)
        pile = piles[left[chosen]]
        parts[device].append(pile.pop())
        if not pile:
            left = np.delete(left, chosen)
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts]


def class_vectors(classes: int, devices: int, *, alpha: float, seed: int) -> NDArray[np.float64]:
    """One class distribution per device, (devices, classes), as ``dirichlet`` uses them."""
    if not (np.isfinite(alpha) and alpha > 0):
        raise ConfigError(
            f"partition.alpha = {alpha}: must be a number above 0 (0.5 is the paper's; the larger, "
            "the more alike the devices' data)"
        )
    random = np.random.default_rng(derive(seed, "partition", "dirichlet", "vectors"))
    return random.dirichlet(np.full(classes, float(alpha)), size=devices)


def iid(samples: int, devices: int, *, seed: int) -> list[Indices]:
    """A random division into parts whose sizes differ by one at most."""
    check_devices(devices, samples)
    random = np.random.default_rng(derive(seed, "partition", "iid"))
    order = random.permutation(samples).astype(np.int64)
    return [np.sort(order[device::devices]) for device in range(devices)]


def by_mapping(
    parts: Mapping[str, Sequence[int]],
    *,
    devices: Sequence[str],
    samples: int,
    where: str = "partition",
) -> list[Indices]:
    """The user's own division, in the order of ``devices``; samples may be left out."""
    unknown = [name for name in parts if name not in set(devices)]
    if unknown:
        raise ConfigError(
            f"{where}: unknown device {unknown[0]!r}; the fleet has {', '.join(devices)}"
        )
    owner: dict[int, str] = {}
    for name in devices:
        rows = parts.get(name, ())
        if not len(rows):
            raise ConfigError(
                f"{where}: empty partition: device {name!r} has no samples; list its row numbers "
                "or take it out of the fleet"
            )
        for row in rows:
            if isinstance(row, bool) or not isinstance(row, (int, np.integer)):
                raise ConfigError(f"{where}: device {name!r}: {row!r} is not a row number")
            if not 0 <= row < samples:
                raise ConfigError(
                    f"{where}: device {name!r}: row {row} is out of range; the training data has "
                    f"rows 0 to {samples - 1}"
                )
            if row in owner:
                raise ConfigError(
                    f"{where}: row {row} is given to {owner[row]!r} and again to {name!r}; a "
                    "sample belongs to one device"
                )
            owner[int(row)] = name
    return [np.sort(np.array(parts[name], dtype=np.int64)) for name in devices]


def by_file(path: str | Path, *, devices: Sequence[str], samples: int) -> list[Indices]:
    """The user's own division from a JSON file: ``{"device name": [row, row, ...], ...}``."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(v, list) for v in content.values()):
        raise ConfigError(
            f'{path}: must hold one object like {{"device name": [0, 1, 2], ...}} with a list of '
            "row numbers for every device"
        )
    return by_mapping(content, devices=devices, samples=samples, where=str(path))


def _unique(pairs: list[tuple[str, object]], path: str | Path) -> dict[str, object]:
    content = dict(pairs)
    if len(content) < len(pairs):
        # JSON would silently keep the last one.
        raise ConfigError(f"{path}: a device is listed twice; join its two lists")
    return content


def _cumulative(mass: NDArray[np.float64]) -> list[float]:
    table: list[float] = np.cumsum(mass if mass.sum() > 0 else np.ones_like(mass)).tolist()
    return table


def check_devices(devices: int, samples: int) -> None:
    if devices < 1:
        raise ConfigError(f"fleet: {devices} devices: at least 1 is needed")
    if devices > samples:
        raise ConfigError(
            f"empty partition: {samples} training samples for {devices} devices leave device "
            f"{samples + 1} without any; use at most {samples} devices or more data"
        )


def hold_out(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Split]:
    """The data set with less training data, and the validation split taken out of it.

    It keeps the test set untouched. The paper describes no validation set; its recipes validate on
    the test set.

    Stratified: ``share`` of every class, rounded, but never all of a class. Where samples have no
    class, ``share`` of all.
    """
    if not 0 < share < 1:
        raise ConfigError(
            f"data.validation = {share}: must be a share of the training data above 0 and below 1, "
            'or "test" to validate on the test set'
        )
    labels = dataset.train.labels.cpu()
    if labels.is_floating_point() or labels.dim() > 1:  # no classes to keep in proportion
        labels = torch.zeros(len(labels), dtype=torch.int64)
    held = stratified(labels, share, seed)
    if not held.any():
        raise ConfigError(
            f"data.validation = {share}: holds out no sample of the {len(labels)}; use a larger "
            "share or more data"
        )
    keep, take = (
        torch.nonzero(mask).flatten().to(dataset.train.labels.device) for mask in (~held, held)
    )
    held_out = dataset.train.take(take).read()  # every evaluation sees the same
    columns = dataset.columns and dataset.columns.take(keep)
    return replace(dataset, train=dataset.train.take(keep), columns=columns), held_out


def stratified(labels: Tensor, share: float, seed: int) -> Tensor:
    """True for ``share`` of the samples of every class, rounded, but never for all of a class."""
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in np.unique(labels.numpy()).tolist():
        rows = torch.nonzero(labels == label).flatten()
        count = min(round(share * len(rows)), len(rows) - 1)
        if count > 0:
            generator = torch.Generator().manual_seed(derive(seed, "validation", label))
            held[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    return held
