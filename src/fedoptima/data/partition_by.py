"""Divisions that are uneven on purpose: by label, in unequal amounts, in whole groups.

As in `data.partition`: row numbers of the training split, one sorted array per device; every sample
goes to exactly one device, none is left empty, and the same arguments give the same parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.core.seeding import derive
from fedoptima.data.finite import in_words
from fedoptima.data.partition import Indices, check_devices


def by_label(
    labels: Tensor | NDArray[np.integer], devices: int, *, labels_each: int, seed: int
) -> list[Indices]:
    """Each device holds samples of ``labels_each`` labels; fewer where there are not enough rows.

    A label's samples are divided evenly among the devices that hold it, which are as many for each
    label as far as its samples go.
    """
    numbers = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    check_devices(devices, len(numbers))
    _, label_of = np.unique(numbers, return_inverse=True)
    rows = np.bincount(label_of)
    if not 1 <= labels_each <= len(rows):
        raise ConfigError(
            f"partition.labels = {labels_each}: the training data has {len(rows)} different "
            f"labels; use 1 to {len(rows)}"
        )
    if devices * labels_each < len(rows):
        raise ConfigError(
            f"partition.labels = {labels_each}: {devices} devices with {labels_each} each cannot "
            f"hold {len(rows)} different labels; use at least {-(-len(rows) // devices)}"
        )
    random = np.random.default_rng(derive(seed, "partition", "label"))
    holders = _even_up_to(np.minimum(rows, devices), devices * labels_each)
    held = np.zeros(devices, dtype=np.int64)  # labels of each device so far
    parts: list[list[Indices]] = [[] for _ in range(devices)]
    for label in random.permutation(len(rows)):
        # Those with the fewest labels so far, by chance among equals: no device gets one twice.
        chosen = np.lexsort((random.random(devices), held))[: holders[label]]
        held[chosen] += 1
        shuffled = random.permutation(np.flatnonzero(label_of == label))
        for device, part in zip(chosen, np.array_split(shuffled, len(chosen)), strict=True):
            parts[device].append(part)
    return [np.sort(np.concatenate(part)) for part in parts]


def _even_up_to(most: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """``total`` divided as evenly as ``most`` allows; less if all of them have their most."""
    given = np.zeros_like(most)
    while (left := total - int(given.sum())) and (given < most).any():
        room = np.flatnonzero(given < most)[:left]
        given[room] += np.minimum(left // len(room), (most - given)[room])
    return given


def by_quantity(samples: int, shares: Sequence[float], *, seed: int) -> list[Indices]:
    """A random division in the ratio of ``shares``, one for each device; at least one sample."""
    check_devices(len(shares), samples)
    sizes = apportion(samples, shares)
    order = np.random.default_rng(derive(seed, "partition", "quantity")).permutation(samples)
    return [np.sort(part) for part in np.split(order.astype(np.int64), np.cumsum(sizes)[:-1])]


def power_law(devices: int, exponent: float, *, seed: int) -> list[float]:
    """1, 2^-exponent, 3^-exponent, ... in an order by chance: speeds often fall along a fleet."""
    ranks = np.random.default_rng(derive(seed, "partition", "power")).permutation(devices)
    shares: list[float] = ((1.0 + ranks) ** -exponent).tolist()
    return shares


def apportion(samples: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers in the ratio of ``shares``, at least 1 each, that add up to ``samples``."""
    ratio = np.array(shares, dtype=np.float64) / np.sum(shares)
    spare = samples - len(ratio)  # beyond the one that each device gets
    ideal = np.maximum(ratio * samples - 1, 0)
    ideal *= spare / max(ideal.sum(), 1e-300)
    sizes = 1 + np.floor(ideal).astype(np.int64)
    missing = samples - int(sizes.sum())
    sizes[np.argsort(-(ideal - np.floor(ideal)), kind="stable")[:missing]] += 1
    found: list[int] = sizes.tolist()
    return found


def by_group(
    groups: Sequence[object],
    devices: Sequence[str],
    *,
    seed: int,
    column: str,
    by_device: bool = False,
) -> list[Indices]:
    """Samples of one group stay together. A group with a device's name is that device's.

    Groups with other names are dealt out, the largest first, to the device that has the fewest
    samples; with ``by_device`` there must be none.
    """
    names = [str(group) for group in groups]
    counts = Counter(names)
    if by_device or not counts.keys().isdisjoint(devices):
        owner = _own_groups(counts, devices, column)
    else:
        owner = _dealt(counts, devices, seed, column)
    parts: dict[str, list[int]] = {device: [] for device in devices}
    for row, name in enumerate(names):
        parts[owner[name]].append(row)
    return [np.array(part, dtype=np.int64) for part in parts.values()]


def _own_groups(counts: Counter[str], devices: Sequence[str], column: str) -> dict[str, str]:
    strangers = [name for name in counts if name not in set(devices)]
    if strangers:
        raise ConfigError(
            f"partition: the training data has samples of {in_words(strangers)} in {column!r}, "
            f"which {'are' if len(strangers) > 1 else 'is'} not in the fleet; it has "
            f"{in_words(devices)}"
        )
    without = [device for device in devices if device not in counts]
    if without:
        raise ConfigError(
            f"empty partition: the training data has no samples of {in_words(without)} in "
            f"{column!r}; take {'them' if len(without) > 1 else 'it'} out of the fleet"
        )
    return {name: name for name in counts}


def _dealt(counts: Counter[str], devices: Sequence[str], seed: int, column: str) -> dict[str, str]:
    if len(counts) < len(devices):
        raise ConfigError(
            f"empty partition: {column!r} has {len(counts)} different values for {len(devices)} "
            f"devices; use at most {len(counts)} devices, or another partition"
        )
    random = np.random.default_rng(derive(seed, "partition", "column"))
    places = [
        (0, int(turn), device)
        for device, turn in zip(devices, random.permutation(len(devices)), strict=True)
    ]
    heapify(places)
    owner: dict[str, str] = {}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        held, turn, device = places[0]
        owner[name] = device
        heapreplace(places, (held + counts[name], turn, device))
    return owner
