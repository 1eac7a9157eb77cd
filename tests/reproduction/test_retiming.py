from __future__ import annotations

from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.reproduction.catalogue import read_catalogue
from fedoptima.reproduction.planned import Choice, Planned, queue
from fedoptima.reproduction.records import Made, Record, Records
from fedoptima.reproduction.retiming import Retimed

TIMES = """
[figures.trained]
place = "Fig. 6"
title = "Accuracy"
kind = "training"
workloads = ["tiny", "small"]
methods = ["fl", "pipar"]
set = { "pipar.micro_batches" = 4 }
times = "idle"
panels = [{ draw = "curves" }]
"""
MADE = Made("fedoptima reproduce", "abc", "2026-11-16", "here", "0")


def record(run: Planned, seconds: float, epochs: float, accuracy: float | None) -> Record:
    curve = [(seconds / 2, epochs / 2, accuracy), (seconds, epochs, accuracy)]
    figures = {"seconds": seconds, "epochs": epochs, "best_accuracy": accuracy, "server_idle": 0.1}
    name, settings = run.case.method, dict(run.case.settings)
    return Record(run.id, run.workload, run.kind, name, settings, run.seed, figures, curve, MADE)


def test_pipar_is_shown_at_the_pace_of_its_dry_run_and_others_as_they_are(
    folder: Path, tmp_path: Path
) -> None:
    with (folder / "figures.toml").open("a") as file:
        file.write(TIMES)
    catalogue = read_catalogue(folder)
    planned = queue(catalogue, catalogue.figures, Choice(seeds=1))
    records = Records(tmp_path / "out")
    for run in planned["idle"]:
        if run.workload == "tiny":
            records.add(record(run, seconds=6.0, epochs=2.0, accuracy=None))
    for run in planned["trained"]:
        records.add(record(run, seconds=40.0, epochs=10.0, accuracy=0.9))
    shown = Retimed(catalogue, planned, records)
    found = {(run.workload, run.case.method): shown.get(run.id) for run in planned["trained"]}
    for (workload, method), seen in found.items():
        assert seen is not None
        slower = method == "pipar" and workload == "tiny"
        assert seen.figures["seconds"] == (30.0 if slower else 40.0)
        assert seen.run.time_to(0.9) == (15.0 if slower else 20.0)
        assert seen.figures["best_accuracy"] == 0.9
        assert seen.figures["epochs"] == 10.0


def test_a_figure_that_is_to_have_the_times_must_be_there(folder: Path) -> None:
    with (folder / "figures.toml").open("a") as file:
        file.write(TIMES.replace('"idle"', '"idel"'))
    with pytest.raises(ConfigError, match="no figure 'idel'"):
        read_catalogue(folder)
