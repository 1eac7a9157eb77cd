"""metrics.csv grows during a run, and a resumed run neither repeats nor loses lines."""

from __future__ import annotations

import csv
from pathlib import Path
from threading import Semaphore

import pytest

from fedoptima.core.jobs import ExportModel, Job
from fedoptima.core.machine import Outcome
from fedoptima.core.types import PayloadId
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.experiments.simulation import resume
from fedoptima.runtime.server.server_node import INTERRUPTED
from tests.experiments.runs import data, network, run
from tests.support.network import DEADLINE, NAMES, Gate, Server, start_device, tiny_recipe, until


def rows(folder: Path) -> list[dict[str, str]]:
    path = folder / "metrics.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def add_line_of_a_later_time(folder: Path) -> None:
    """What a killed process wrote after its last checkpoint."""
    with (folder / "metrics.csv").open("a") as file:
        file.write("999.0,9.0,9,9,9,0.9,0.1\n")


# ---- simulated -----------------------------------------------------------------------------------


def test_a_simulation_writes_every_evaluation_as_it_comes(tmp_path: Path) -> None:
    seen: list[int] = []

    def between_events() -> bool:
        seen.append(len(rows(tmp_path)))
        return False

    result = run(out=tmp_path, interrupted=between_events)
    assert len(result.curve) > 2
    assert seen == sorted(seen)
    assert set(seen) == set(range(max(seen) + 1))
    assert max(seen) >= len(result.curve) - 1  # the last one ends the run
    assert [float(row["accuracy"]) for row in rows(tmp_path)] == [p.accuracy for p in result.curve]


def test_a_resumed_simulation_has_the_lines_of_an_unbroken_one(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(out=whole)

    def after_one_evaluation() -> bool:
        return len(rows(broken)) == 1

    with pytest.raises(Interrupted):
        run(out=broken, interrupted=after_one_evaluation)
    add_line_of_a_later_time(broken)
    resume(broken, model=network(), train=data(), test=data(48, seed=1))
    assert (broken / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()


# ---- over the network ----------------------------------------------------------------------------


class Turnstile(Gate):
    """Lets a device hand in one update for each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = Semaphore(0)

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        if isinstance(job, ExportModel):
            assert self.passes.acquire(timeout=DEADLINE)
        return super().execute(job, result)


def test_a_server_writes_every_evaluation_as_it_comes_and_goes_on_after_a_resume(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    recipe = tiny_recipe("fl", stop={"epochs": 3.0})
    turnstile = Turnstile()
    turnstile.passes.release()
    with Server(recipe, folder) as server:
        devices = [
            start_device("slow", server.address, tmp_path, gate=turnstile),
            start_device("middle", server.address, tmp_path),
            start_device("fast", server.address, tmp_path),
        ]
        until(lambda: len(rows(folder)) == 1, "the first evaluation is in the file")
        assert rows(folder)[0]["device_samples"] == ""  # known when the devices' records are whole
        server.interrupt()
        with pytest.raises(Interrupted):
            server.result()
        turnstile.passes.release()
        assert [device.answer() for device in devices] == [INTERRUPTED] * 3
    before = rows(folder)
    add_line_of_a_later_time(folder)
    with Server(recipe, folder, resume=True) as server:
        assert rows(folder) == before
        devices = [start_device(name, server.address, tmp_path) for name in NAMES]
        result = server.result()
        assert [device.answer() for device in devices] == [result.reason] * 3
    kept = rows(folder)
    assert [float(row["accuracy"]) for row in kept] == [point.accuracy for point in result.curve]
    assert [int(row["device_samples"]) for row in kept] == [p.device_samples for p in result.curve]
    assert [kept[0][name] for name in ("seconds", "epochs", "accuracy")] == [
        before[0][name] for name in ("seconds", "epochs", "accuracy")
    ]
