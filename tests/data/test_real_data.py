"""The real data sets, where FEDOPTIMA_DATA says they are; decoded into the user's own cache."""

from __future__ import annotations

import os

import pytest
import torch

from fedoptima.data.registry import DATASETS, load_dataset

from .test_stand_in import CASES, facts

pytestmark = pytest.mark.skipif(
    "FEDOPTIMA_DATA" not in os.environ, reason="set FEDOPTIMA_DATA to a directory of data sets"
)


@pytest.fixture(autouse=True)
def cache() -> None:
    """Unlike the other tests these keep the usual cache: decoding everything takes a minute."""


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "tiny_imagenet"])
def test_the_counts_are_those_of_the_registry(name: str):
    row = DATASETS[name]
    if row.where(None) is None:
        pytest.skip(f"{name} is not in FEDOPTIMA_DATA")
    dataset = load_dataset(name)
    assert (len(dataset.train), len(dataset.test)) == (row.train, row.test)
    per_class = torch.bincount(dataset.train.labels, minlength=dataset.classes)
    assert int(per_class.min()) > 0


def test_tiny_imagenet_is_whole_or_an_even_subset():
    if DATASETS["tiny_imagenet"].where(None) is None:
        pytest.skip("tiny_imagenet is not in FEDOPTIMA_DATA")
    dataset = load_dataset("tiny_imagenet")
    assert dataset.classes == 200
    assert len(torch.bincount(dataset.train.labels).unique()) == 1
    assert dataset.train.inputs.shape[1:] == (3, 64, 64)


def test_cifar10_has_the_published_channel_means():
    if DATASETS["cifar10"].where(None) is None:
        pytest.skip("cifar10 is not in FEDOPTIMA_DATA")
    means = load_dataset("cifar10").train.inputs.float().mean((0, 2, 3))
    assert torch.allclose(means, torch.tensor([125.307, 122.950, 113.865]), atol=0.01)


def test_glue_division_of_sst2_has_its_own_counts():
    if DATASETS["sst2"].where(None) is None:
        pytest.skip("sst2 is not in FEDOPTIMA_DATA")
    dataset = load_dataset("sst2", division="glue")
    assert (len(dataset.train), len(dataset.test)) == (67_349, 872)
    assert torch.bincount(dataset.train.labels).tolist() == [29_780, 37_569]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_the_facts_of_the_registry_are_those_of_the_real_data(
    name: str, options: dict[str, object]
) -> None:
    if DATASETS[name].where(None) is None:
        pytest.skip(f"{name} is not in FEDOPTIMA_DATA")
    real = load_dataset(name, **options)
    if name == "tiny_imagenet" and len(real.train) != DATASETS[name].train:
        pytest.skip("a subset of tiny_imagenet is in FEDOPTIMA_DATA")
    assert facts(DATASETS[name].stand_in(options)) == facts(real)
