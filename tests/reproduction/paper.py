"""A folder of figures and recipes that is small enough to be run in a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedoptima.comparison.execution import Order, RunState, execute
from fedoptima.comparison.many_runs import Execution
from fedoptima.comparison.pool import Pool
from fedoptima.config.schema import Recipe
from fedoptima.experiments.given import Given
from fedoptima.reproduction.catalogue import Catalogue, read_catalogue
from fedoptima.reproduction.planned import Choice, distinct, queue
from fedoptima.reproduction.records import Records
from fedoptima.reproduction.work import Session, work
from tests.cli.conftest import TINY

FIGURES = """
[workloads.tiny]
title = "Digits"
recipe = "tiny.toml"

[workloads.small]
title = "Digits, too"
recipe = "tiny.toml"
set = { "training.batch_size" = 20 }

[quick]
workload = "tiny"
dry = { "stop.epochs" = 1 }

[figures.idle]
place = "Fig. 8"
title = "Idle time"
kind = "dry"
workloads = ["tiny", "small"]
methods = ["fedoptima", "fl", "pipar"]
set = { "stop.epochs" = 2, "pipar.micro_batches" = 2 }
seeds = 1
panels = [{ draw = "bars", measure = "server_idle" }, { draw = "bars", measure = "device_idle" }]

[figures.traffic]
place = "Fig. 2"
title = "Traffic"
kind = "dry"
workloads = ["tiny"]
methods = ["fl"]
set = { "stop.epochs" = 2 }
seeds = 1
panels = [{ draw = "bars", measure = "traffic" }]

[figures.cap]
place = "Sec. 3"
title = "The cap"
kind = "dry"
workloads = ["tiny"]
methods = ["fedoptima", "fl"]
vary = { "method.activation_cap" = [2, 4] }
panels = [{ draw = "lines", measure = "memory" }]
quick.vary = { "method.activation_cap" = [2] }

[figures.accuracy]
place = "Fig. 6"
title = "Accuracy"
kind = "training"
workloads = ["tiny"]
methods = ["fedoptima", "fl"]
panels = [{ draw = "curves" }]

[figures.auxiliary]
place = "Fig. 14"
title = "Auxiliary networks"
kind = "training"
workloads = ["tiny"]
methods = ["fedoptima"]
vary = { "method.auxiliary" = ["default", "classifier"] }
panels = [{ draw = "curves" }]

[figures.split]
place = "Sec. 3.2"
title = "Splits"
kind = "plan"
workloads = ["tiny"]
methods = ["fedoptima"]
seeds = 1
panels = [{ draw = "splits" }, { draw = "bars", measure = "startup" }]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "paper"
    path.mkdir()
    (path / "tiny.toml").write_text(TINY)
    (path / "figures.toml").write_text(FIGURES)
    return path


@pytest.fixture
def catalogue(folder: Path) -> Catalogue:
    return read_catalogue(folder)


# ---- runs in this process: no worker has to be started ---------------------------------------


class _Here:
    """A pool of one place, which executes a run as soon as it is started."""

    def __init__(self) -> None:
        self._states: list[tuple[int, RunState]] = []

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def has_room(self) -> bool:
        return not self._states

    def start(self, index: int, order: Order) -> None:
        self._states.append((index, execute(order, _Line(), Given())))

    def news(self) -> Iterator[tuple[int, RunState]]:
        while self._states:
            yield self._states.pop()

    def stop(self) -> None:
        pass


class _Line:
    def send(self, state: RunState) -> None:
        pass

    def stopped(self) -> bool:
        return False


class HereExecution(Execution):
    def pool(self, recipe: Recipe, given: Given, folder: Path) -> Pool:
        return _Here()


def session(**more: object) -> Session:
    execution = HereExecution(**more)  # type: ignore[arg-type]
    return Session(execution, "fedoptima reproduce", commit="abc")


def worked_off(catalogue: Catalogue, names: list[str], out: Path, seeds: int = 1) -> Records:
    planned = queue(catalogue, catalogue.chosen(names), Choice(seeds=seeds))
    records = Records(out)
    outcome = work(distinct(list(planned.values())), records, session())
    assert (outcome.failed, outcome.left) == ([], 0)
    return records
