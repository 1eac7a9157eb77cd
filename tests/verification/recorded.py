"""Small runs, recorded in a folder."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

from fedoptima.data.custom import as_dataset
from fedoptima.experiments.given import Given
from fedoptima.experiments.result import Result
from tests.experiments.runs import data, network, run

GIVEN = {"model": network(), "train": data(), "test": data(48, seed=1)}


def given() -> Given:
    return Given(network(), as_dataset(data(), data(48, seed=1)))


def recorded(folder: Path, **changes: object) -> Result:
    return run(out=folder, **{"epochs": 1.0, **changes})


def rewrite(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Change a trace's records on disk."""
    with gzip.open(path, "rt") as file:
        header, *lines = file.read().splitlines()
    with gzip.open(path, "wt") as file:
        file.writelines(f"{line}\n" for line in [header, *change(lines)])
