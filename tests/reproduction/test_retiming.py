from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.registry import build_model
from fedoptima.reproduction.catalogue import Catalogue, read_catalogue
from fedoptima.reproduction.planned import Choice, Planned, distinct, queue, runs_of
from fedoptima.reproduction.records import Made, Record, Records
from fedoptima.reproduction.retiming import Retimed
from fedoptima.reproduction.work import work
from tests.reproduction.paper import session
from tests.reproduction.test_catalogue import PAPER

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


SAME = """
[figures.times]
place = "Fig. 10"
title = "Times"
kind = "dry"
workloads = ["tiny"]
methods = ["fl", "splitfed", "pipar"]
set = { "pipar.micro_batches" = 2 }
vary = { "pipar.own_split" = [false, true] }
seeds = 1
panels = [{ draw = "bars", measure = "traffic" }]

[figures.learned]
place = "Fig. 6"
title = "Accuracy"
kind = "training"
workloads = ["tiny"]
methods = ["fl", "splitfed", "pipar"]
set = { "pipar.micro_batches" = 2 }
vary = { "pipar.own_split" = [false, true] }
times = "times"
learns_as = { "splitfed" = "fl", "pipar, own_split=true" = "pipar, own_split=false" }
panels = [{ draw = "curves" }]
"""


def described(folder: Path, figures: str = SAME, recipe: str = "") -> Catalogue:
    with (folder / "figures.toml").open("a") as file:
        file.write(figures)
    path = folder / "tiny.toml"
    training = "{ batch_size = 50, iterations = 4, evaluate_every = 0.4 }"
    path.write_text(recipe + path.read_text().replace("{ batch_size = 50 }", training))
    return read_catalogue(folder)


def test_what_another_method_learned_at_a_dry_pace_is_what_training_gives(
    folder: Path, tmp_path: Path
) -> None:
    catalogue = described(folder)
    planned = queue(catalogue, catalogue.chosen(["times", "learned"]), Choice(seeds=1))
    wanted = distinct(list(planned.values()))
    assert [run.case.method for run in wanted if run.kind == "training"] == ["fl", "pipar"]
    less, all_of_it = Records(tmp_path / "less"), Records(tmp_path / "all")
    work(wanted, less, session())
    work(planned["learned"], all_of_it, session())
    shown = Retimed(catalogue, planned, less)
    for run in planned["learned"]:
        seen, trained = shown.get(run.id), all_of_it.get(run.id)
        assert seen is not None
        assert trained is not None
        assert (seen.id, seen.method, seen.seed) == (run.id, run.case.method, run.seed)
        assert len(seen.curve) > 1
        for mine, theirs in zip(seen.curve, trained.curve, strict=True):
            assert mine == pytest.approx(theirs, rel=0.01)
        for name in ("seconds", "best_accuracy", "epochs", "server_idle", "bytes_up"):
            assert seen.figures[name] == pytest.approx(trained.figures[name], rel=1e-3), name


def test_what_is_not_trained_is_not_shown_without_its_times(folder: Path, tmp_path: Path) -> None:
    catalogue = described(folder)
    planned = queue(catalogue, catalogue.chosen(["times", "learned"]), Choice(seeds=1))
    records = Records(tmp_path / "out")
    fl, splitfed, *_ = planned["learned"]
    records.add(record(fl, seconds=40.0, epochs=10.0, accuracy=0.9))
    assert Retimed(catalogue, planned, records).get(fl.id) == records.get(fl.id)
    assert Retimed(catalogue, planned, records).get(splitfed.id) is None


def test_a_method_with_another_rate_is_trained_itself(folder: Path) -> None:
    own = "methods.splitfed.training.device.learning_rate = 0.04\n"
    catalogue = described(folder, recipe=own)
    fl, splitfed, pipar, own_split = runs_of(
        catalogue, catalogue.figures["learned"], Choice(seeds=1)
    )
    assert (splitfed.learned_by, pipar.learned_by) == ("", "")
    assert (fl.learned_by, own_split.learned_by) == ("", pipar.id)


def test_a_row_that_learns_as_another_must_be_there_and_have_times(folder: Path) -> None:
    catalogue = described(folder, SAME.replace('"splitfed" = "fl"', '"splitfed" = "fll"'))
    with pytest.raises(ConfigError, match=r"has no 'fll'; there are fl, pipar, "):
        runs_of(catalogue, catalogue.figures["learned"], Choice(seeds=1))
    text = (folder / "figures.toml").read_text()
    (folder / "figures.toml").write_text(text.replace('times = "times"\n', ""))
    with pytest.raises(ConfigError, match="learns_as needs times"):
        read_catalogue(folder)


def test_pipar_learns_as_fl_only_in_models_without_batch_normalisation() -> None:
    catalogue = read_catalogue(PAPER)
    for figure in catalogue.figures.values():
        if not any("pipar" in row and other == "fl" for row, other in figure.learns_as.items()):
            continue
        for run in runs_of(catalogue, figure, Choice(seeds=1)):
            facts = {"vocabulary": 50, "length": 8, "classes": 2}
            model = build_model(run.recipe.model.name, facts, {})
            assert not any(isinstance(each, nn.BatchNorm2d) for each in model.modules())
