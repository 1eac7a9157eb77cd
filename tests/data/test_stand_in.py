"""A data set's facts stand in for it where no sample is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Dataset
from fedoptima.data.registry import DATASETS, load_dataset, load_or_stand_in
from fedoptima.data.text import TextSource

CASES = [
    (name, {"division": division} if division else {})
    for name, source in DATASETS.items()
    for division in (source.facts if isinstance(source, TextSource) else [""])
]


def facts(dataset: Dataset) -> dict[str, object]:
    return {
        "kind": dataset.kind,
        "test": len(dataset.test),
        "per class": torch.bincount(dataset.train.labels).tolist(),
        "inputs": (dataset.train.inputs.shape, dataset.train.inputs.dtype),
        "classes": dataset.classes,
        "facts": dict(dataset.facts),
        "prepared": dataset.prepare(dataset.train.inputs[:2]).dtype,
    }


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_stand_in_is_a_whole_data_set_without_its_memory(
    name: str, options: dict[str, object]
) -> None:
    source = DATASETS[name]
    dataset = source.stand_in(options).check()
    if options.get("division") != "glue":
        assert (len(dataset.train), len(dataset.test)) == (source.train, source.test)
    assert dataset.train.inputs.untyped_storage().nbytes() <= 8


def test_digits_have_the_facts_of_the_registry() -> None:
    assert facts(DATASETS["digits"].stand_in({})) == facts(load_dataset("digits"))


def test_options_change_the_facts_as_they_change_the_data() -> None:
    dataset = DATASETS["imdb"].stand_in({"vocabulary": 500, "length": 7})
    assert dict(dataset.facts) == {"vocabulary": 500, "length": 7, "classes": 2}
    with pytest.raises(ConfigError, match="'length' = 0"):
        DATASETS["imdb"].stand_in({"length": 0})


def test_what_is_assumed_is_said_and_what_is_there_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(load_or_stand_in("cifar10", directory=tmp_path).train) == 50_000
    assert "'cifar10' is not on disk" in caplog.text
    assert "50,000 training samples" in caplog.text
    caplog.clear()
    assert len(load_or_stand_in("digits").train) == 1442
    assert not caplog.text
    with pytest.raises(ConfigError, match="unknown data set"):
        load_or_stand_in("cifar11")
