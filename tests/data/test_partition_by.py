"""Divisions by label, by quantity and by group: laws that hold for any data and fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedoptima.core.errors import ConfigError
from fedoptima.data.partition import Indices
from fedoptima.data.partition_by import apportion, by_group, by_label, by_quantity, power_law

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=60)
DEVICES, SEEDS = st.integers(1, 9), st.integers(0, 100)


def is_a_division(parts: Sequence[Indices], samples: int) -> bool:
    """Every row exactly once, rows in order, and no device without any."""
    rows = sorted(np.concatenate(parts).tolist())
    return rows == list(range(samples)) and all(
        len(part) and (np.diff(part) > 0).all() for part in parts
    )


def same(first: Sequence[Indices], second: Sequence[Indices]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@settings(max_examples=80, deadline=None)
@given(labels=LABELS, devices=DEVICES, each=st.integers(1, 7), seed=SEEDS)
def test_by_label_divides_all_rows_and_no_device_has_more_labels_than_asked(
    labels: list[int], devices: int, each: int, seed: int
) -> None:
    known, devices = len(set(labels)), min(devices, len(labels))
    each = max(min(each, known), -(-known // devices))
    parts = by_label(np.array(labels), devices, labels_each=each, seed=seed)
    assert is_a_division(parts, len(labels))
    assert max(len({labels[row] for row in part}) for part in parts) <= each
    assert same(parts, by_label(np.array(labels), devices, labels_each=each, seed=seed))


@settings(max_examples=40, deadline=None)
@given(known=st.integers(1, 8), devices=DEVICES, each=st.integers(1, 8), seed=SEEDS)
def test_by_label_gives_each_device_exactly_its_labels_where_rows_suffice(
    known: int, devices: int, each: int, seed: int
) -> None:
    labels = np.arange(known * 40) % known
    each = max(min(each, known), -(-known // devices))
    parts = by_label(labels, devices, labels_each=each, seed=seed)
    assert {len(set(labels[part].tolist())) for part in parts} == {each}


def test_devices_share_labels_in_different_mixes() -> None:
    labels = np.arange(1000) % 10
    parts = by_label(labels, 10, labels_each=2, seed=1)
    assert len({tuple(sorted(set(labels[part].tolist()))) for part in parts}) > 5
    assert {len(part) for part in parts} == {100}
    assert not same(parts, by_label(labels, 10, labels_each=2, seed=2))


@pytest.mark.parametrize(
    ("devices", "each", "message"),
    [
        (4, 2, r"4 devices with 2 each cannot hold 10 different labels; use at least 3"),
        (4, 11, r"partition.labels = 11: the training data has 10 different labels; use 1 to 10"),
        (200, 2, "empty partition: 100 training samples for 200 devices"),
    ],
)
def test_labels_that_cannot_be_divided_so_are_an_error(
    devices: int, each: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        by_label(np.arange(100) % 10, devices, labels_each=each, seed=1)


@settings(max_examples=80, deadline=None)
@given(
    shares=st.lists(st.floats(0.001, 1000), min_size=1, max_size=9),
    samples=st.integers(1, 300),
    seed=SEEDS,
)
def test_by_quantity_divides_all_rows_and_a_larger_share_is_never_less(
    shares: list[float], samples: int, seed: int
) -> None:
    samples = max(samples, len(shares))
    parts = by_quantity(samples, shares, seed=seed)
    assert is_a_division(parts, samples)
    assert same(parts, by_quantity(samples, shares, seed=seed))
    order = np.argsort(shares, kind="stable")
    sizes = np.array([len(part) for part in parts])[order]
    assert (np.diff(sizes) >= -1).all()  # equal remainders go to the first


def test_amounts_are_in_the_ratio_of_the_shares() -> None:
    assert apportion(800, [4, 2, 1, 1]) == [400, 200, 100, 100]
    assert apportion(4, [1000, 1, 1, 1]) == [1, 1, 1, 1]
    assert apportion(1000, [1, 0.001]) == [999, 1]


@settings(max_examples=30, deadline=None)
@given(devices=st.integers(1, 50), power=st.floats(0.1, 3), seed=SEEDS)
def test_a_power_law_has_one_device_of_each_rank(devices: int, power: float, seed: int) -> None:
    shares = power_law(devices, power, seed=seed)
    assert sorted(shares, reverse=True) == pytest.approx(
        [rank**-power for rank in range(1, devices + 1)]
    )
    assert shares == power_law(devices, power, seed=seed)


@settings(max_examples=80, deadline=None)
@given(groups=st.lists(st.integers(0, 12), min_size=1, max_size=60), devices=DEVICES, seed=SEEDS)
def test_a_group_stays_on_one_device(groups: list[int], devices: int, seed: int) -> None:
    names = [f"d-{number}" for number in range(min(devices, len(set(groups))))]
    parts = by_group(groups, names, seed=seed, column="who")
    assert is_a_division(parts, len(groups))
    owners = [{groups[row] for row in part} for part in parts]
    assert sum(len(owner) for owner in owners) == len(set(groups))
    assert same(parts, by_group(groups, names, seed=seed, column="who"))
    # The largest go out first: nobody is ahead of another by more than one group.
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= max(Counter(groups).values())


def test_a_group_with_a_devices_name_is_that_devices() -> None:
    parts = by_group(["b", "a", "b"], ["a", "b"], seed=1, column="site")
    assert [part.tolist() for part in parts] == [[1], [0, 2]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["a", "x"], r"samples of x in 'site', which is not in the fleet; it has a, b"),
        (["a", "a"], r"empty partition: .* no samples of b in 'site'"),
        (["x", "x"], r"'site' has 1 different values for 2 devices; use at most 1 devices"),
    ],
)
def test_groups_that_do_not_fit_the_fleet_are_named(groups: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        by_group(groups, ["a", "b"], seed=1, column="site")
