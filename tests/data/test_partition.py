from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedoptima.core.errors import ConfigError
from fedoptima.core.seeding import derive
from fedoptima.data.partition import by_file, by_mapping, class_vectors, dirichlet, iid

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=60)


def slow_dirichlet(labels: np.ndarray, devices: int, alpha: float, seed: int) -> list[list[int]]:
    """Section 5.2 word by word: every draw renormalises the whole vector from scratch."""
    names = sorted(set(labels.tolist()))
    vectors = class_vectors(len(names), devices, alpha=alpha, seed=seed)
    random = np.random.default_rng(derive(seed, "partition", "dirichlet", "draws"))
    piles = [list(random.permutation(np.flatnonzero(labels == name))) for name in names]
    parts: list[list[int]] = [[] for _ in range(devices)]
    for turn, draw in enumerate(random.random(len(labels))):
        vector = vectors[turn % devices]
        mass = [vector[i] if piles[i] else 0.0 for i in range(len(names))]
        if sum(mass) == 0:
            mass = [1.0 if pile else 0.0 for pile in piles]
        target, chosen = draw * sum(mass), -1
        for i, share in enumerate(mass):
            if share > 0:
                chosen = i
                if target < share:
                    break
                target -= share
        parts[turn % devices].append(int(piles[chosen].pop()))
    return [sorted(part) for part in parts]


@settings(max_examples=60, deadline=None)
@given(labels=LABELS, devices=st.integers(1, 9), alpha=st.sampled_from([1e-4, 0.5, 50.0]),
       seed=st.integers(0, 100))  # fmt: skip
def test_every_sample_goes_to_exactly_one_device_and_sizes_differ_by_one_at_most(
    labels, devices, alpha, seed
):
    devices = min(devices, len(labels))
    parts = dirichlet(np.array(labels), devices, alpha=alpha, seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=40, deadline=None)
@given(labels=LABELS, devices=st.integers(1, 5), alpha=st.sampled_from([1e-4, 0.1, 0.5, 5.0]),
       seed=st.integers(0, 100))  # fmt: skip
def test_it_is_the_process_of_the_paper_draw_by_draw(labels, devices, alpha, seed):
    devices = min(devices, len(labels))
    parts = dirichlet(np.array(labels), devices, alpha=alpha, seed=seed)
    expected = slow_dirichlet(np.array(labels), devices, alpha, seed)
    assert [part.tolist() for part in parts] == expected


def test_the_mix_of_classes_follows_the_vector_while_labels_last():
    labels = np.repeat(np.arange(4), 2_500)
    vectors = class_vectors(4, 40, alpha=0.5, seed=3)
    # Forty devices average out, so hardly any label runs out early and the mixes are near.
    parts = dirichlet(labels, 40, alpha=0.5, seed=3)
    mixes = np.array([np.bincount(labels[part], minlength=4) / len(part) for part in parts])
    assert np.abs(mixes - vectors).mean() < 0.08
    assert np.corrcoef(mixes.ravel(), vectors.ravel())[0, 1] > 0.95


def test_a_device_without_mass_on_what_is_left_draws_evenly_from_it():
    # alpha near 0 puts all of a device's mass on one class; the three others must still go out.
    labels = np.repeat(np.arange(4), 300)
    [only] = dirichlet(labels, 1, alpha=1e-9, seed=0)
    assert only.tolist() == list(range(1200))
    vectors = class_vectors(4, 2, alpha=1e-9, seed=5)
    assert sorted(vectors.max(axis=1)) == [1.0, 1.0]
    parts = dirichlet(labels, 2, alpha=1e-9, seed=5)
    for part, vector in zip(parts, vectors, strict=True):
        assert np.bincount(labels[part], minlength=4)[vector.argmax()] >= 150


def test_a_small_alpha_makes_devices_differ_more_than_a_large_one():
    labels = np.repeat(np.arange(10), 100)

    def spread(alpha: float) -> float:
        parts = dirichlet(labels, 8, alpha=alpha, seed=1)
        return float(np.std([np.bincount(labels[part], minlength=10) for part in parts]))

    assert spread(0.1) > 2 * spread(100.0)


def test_the_same_seed_gives_the_same_partition_for_ever():
    labels = torch.arange(1000) % 10
    parts = dirichlet(labels, 8, seed=7)
    digest = sha256(b"|".join(part.astype("<i8").tobytes() for part in parts)).hexdigest()
    assert digest[:16] == "50eec5f55c6b22c9"
    other = dirichlet(labels, 8, seed=8)
    assert any(not np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


def test_iid_parts_are_disjoint_complete_and_even():
    parts = iid(103, 10, seed=1)
    assert sorted(np.concatenate(parts).tolist()) == list(range(103))
    assert sorted(len(part) for part in parts) == [10] * 7 + [11] * 3
    assert all(np.array_equal(a, b) for a, b in zip(parts, iid(103, 10, seed=1), strict=True))
    assert not np.array_equal(parts[0], iid(103, 10, seed=2)[0])


@pytest.mark.parametrize("alpha", [0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_positive(alpha: float):
    with pytest.raises(ConfigError, match=r"partition\.alpha = .*above 0"):
        dirichlet(np.zeros(4, np.int64), 2, alpha=alpha, seed=0)


@pytest.mark.parametrize("divide", [
    lambda devices: dirichlet(np.zeros(4, np.int64), devices, seed=0),
    lambda devices: iid(4, devices, seed=0),
])  # fmt: skip
def test_more_devices_than_samples_is_an_empty_partition(divide):
    with pytest.raises(ConfigError, match=r"empty partition: 4 .* device 5 .* at most 4 devices"):
        divide(5)
    with pytest.raises(ConfigError, match="0 devices"):
        divide(0)


def test_a_file_gives_each_device_its_rows_in_the_order_of_the_fleet(tmp_path: Path):
    path = tmp_path / "parts.json"
    path.write_text(json.dumps({"b": [4, 2], "a": [0]}))
    first, second = by_file(path, devices=["a", "b"], samples=5)
    assert first.tolist() == [0]
    assert second.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": [0], "b": [0]}', "row 0 is given to 'a' and again to 'b'"),
        ('{"a": [1, 1], "b": [0]}', "row 1 is given to 'a' and again to 'a'"),
        ('{"a": [5], "b": [0]}', "'a': row 5 is out of range; .* rows 0 to 4"),
        ('{"a": [-1], "b": [0]}', "row -1 is out of range"),
        ('{"a": [1], "b": [0], "c": [2]}', "unknown device 'c'; the fleet has a, b"),
        ('{"a": [1], "b": []}', "empty partition: device 'b' has no samples"),
        ('{"a": [1]}', "empty partition: device 'b' has no samples"),
        ('{"a": [1.5], "b": [0]}', "1.5 is not a row number"),
        ('{"a": [true], "b": [0]}', "True is not a row number"),
        ('{"a": [1], "a": [2], "b": [0]}', "a device is listed twice"),
        ('{"a": 1, "b": [0]}', "a list of row numbers for every device"),
        ("[[0], [1]]", "must hold one object"),
        ("{", "not valid JSON"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, content: str, message: str):
    path = tmp_path / "parts.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"parts\.json.*{message}"):
        by_file(path, devices=["a", "b"], samples=5)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"parts\.json: cannot be read"):
        by_file(tmp_path / "parts.json", devices=["a"], samples=5)


def test_a_mapping_may_hold_arrays():
    parts = by_mapping({"a": np.array([2, 0])}, devices=["a"], samples=3)
    assert [part.tolist() for part in parts] == [[0, 2]]
