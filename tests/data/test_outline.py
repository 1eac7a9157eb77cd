"""What a dry run knows of a data set without reading it is what reading it would say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.data.dataset import Dataset
from fedoptima.data.outline import Outline, even_parts, outline
from fedoptima.data.partition import dirichlet, hold_out, iid
from fedoptima.data.registry import DATASETS, assumption, load_dataset
from tools.stored_costs import OUTLINES, outline_of

from .test_stand_in import CASES


def read(dataset: Dataset) -> Outline:
    counts = torch.bincount(dataset.train.labels, minlength=dataset.classes)
    return Outline(dict(dataset.facts), tuple(counts.tolist()))


@pytest.mark.parametrize("name", DATASETS)
def test_what_is_stored_is_what_the_registry_says(name: str) -> None:
    """If this fails: python -m tools.stored_costs --write"""
    stored = json.loads(OUTLINES.read_text())
    assert list(stored) == list(DATASETS)
    assert stored[name] == json.loads(json.dumps(outline_of(name)))


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_set_that_is_not_on_disk_is_assumed_to_be_complete(
    name: str, options: dict[str, object], tmp_path: Path
) -> None:
    assumed = assumption(name, tmp_path)
    assert (assumed is None) == (name == "digits")  # those are always there
    complete = read(DATASETS[name].stand_in(options))
    assert outline(name, tmp_path, options) == replace(complete, assumed=assumed)


@pytest.mark.parametrize("share", [0.1, 0])
def test_hidden_words_change_nothing_of_what_is_known(share: float, tmp_path: Path) -> None:
    assert outline("sst2", tmp_path, {"hidden_words": share}) == outline("sst2", tmp_path, {})


@pytest.mark.parametrize(("name", "share"), [("sst2", 1.5), ("sst2", "all"), ("mnist", 0.1)])
def test_a_set_is_read_where_hidden_words_are_wrong(
    name: str, share: object, tmp_path: Path
) -> None:
    """So that reading says what is wrong."""
    assert outline(name, tmp_path, {"hidden_words": share}) is None


def sst2(folder: Path, rows: int) -> None:
    lines = [f"word{row} and word{row % 3}\t{row % 2}" for row in range(rows)]
    folder.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("\n".join(["sentence\tlabel", *lines, ""]))


def mnist(folder: Path, rows: int) -> None:
    folder.mkdir()
    for part in ("train", "t10k"):
        header = bytes((0, 0, 8, 3)) + b"".join(n.to_bytes(4, "big") for n in (rows, 28, 28))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + bytes(rows * 28 * 28))
        labels = bytes(row % 7 for row in range(rows))
        header = bytes((0, 0, 8, 1)) + rows.to_bytes(4, "big")
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + labels)


@pytest.mark.parametrize(
    ("name", "options"), [("mnist", {}), ("sst2", {}), ("sst2", {"division": "glue"})]
)
def test_a_set_on_disk_is_what_it_was_when_it_was_read(
    name: str, options: Mapping[str, object], tmp_path: Path
) -> None:
    (mnist if name == "mnist" else sst2)(tmp_path / name, 40)
    assert outline(name, tmp_path, options) is None  # nobody knows what is in the files
    dataset = load_dataset(name, directory=tmp_path, **options)
    assert outline(name, tmp_path, options) == read(dataset)


def test_own_data_and_unusual_options_have_to_be_read(tmp_path: Path) -> None:
    assert outline("somebody:data", tmp_path, {}) is None
    assert outline("imdb", tmp_path, {"length": 20}) is None
    assert outline("cifar10", tmp_path, {"colour": "grey"}) is None


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 5))
def test_the_parts_are_as_large_as_those_of_a_real_division(
    samples: int, devices: int, seed: int
) -> None:
    parts = even_parts(samples, devices)
    if devices > samples:
        assert parts is None
        return
    labels = np.arange(samples) % 7
    assert parts == [len(part) for part in iid(samples, devices, seed=seed)]
    assert parts == [len(part) for part in dirichlet(labels, devices, seed=seed)]


@pytest.mark.parametrize("share", [0.004, 0.1, 0.5, 0.999])
def test_as_much_is_left_for_training_as_holding_out_leaves(share: float) -> None:
    dataset = load_dataset("digits")
    rest, _ = hold_out(dataset, share, seed=1)
    assert read(dataset).kept_for_training(share) == len(rest.train)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1e-6])
def test_a_share_that_holds_out_nothing_is_left_to_who_refuses_it(share: float) -> None:
    assert read(load_dataset("digits")).kept_for_training(share) is None
