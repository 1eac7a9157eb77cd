"""From runs to rows: means over seeds, targets that are never reached, runs that failed."""

from __future__ import annotations

from dataclasses import replace
from statistics import stdev

import pytest

from fedoptima.comparison.result import Comparison, lines
from fedoptima.comparison.rows import Figures, Moment, Run
from fedoptima.comparison.spec import About
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe

FIGURES = Figures(
    accuracy=0.7,
    best_accuracy=0.8,
    seconds=100.0,
    epochs=10.0,
    server_idle=1.0,
    device_idle_1=2.0,
    device_idle_2=3.0,
    device_throughput=400.0,
    server_throughput=0.0,
    bytes_up=5e6,
    bytes_down=6e6,
    server_memory=7 * 2.0**20,
)


def run(method: str, seed: int = 1, *, best: float = 0.8, at: float = 50.0) -> Run:
    """A run that comes to its best accuracy at that second and loses some of it."""
    figures = replace(FIGURES, best_accuracy=best, accuracy=best - 0.1)
    curve = (Moment(at / 2, 1.0, best / 2), Moment(at, 5.0, best), Moment(100.0, 10.0, best - 0.1))
    return Run(method, seed, figures=figures, curve=curve)


def comparison(*runs: Run, target: float | None = None) -> Comparison:
    table = {
        "name": "example",
        "model": {"name": "vgg5"},
        "data": {"name": "digits"},
        "fleet": {"server": {"gflops": 1.0}, "devices": [{"name": "d", "gflops": 1.0}]},
        "stop": {"epochs": 1.0},
    }
    about = About(
        recipe=validate(Recipe, table, "test"),
        methods=tuple(dict.fromkeys(each.method for each in runs)),
        seeds=tuple(dict.fromkeys(each.seed for each in runs)),
        options={},
        dry=False,
        target=target,
        command=None,
        versions={"fedoptima": "0"},
        machine="2 cores",
        date="2026-01-01",
    )
    return Comparison(about, runs)


def cells(found: Comparison, name: str) -> list[str]:
    return dict(lines(found))[name]


def test_the_target_is_99_percent_of_fedoptimas_best_and_its_time_the_measure() -> None:
    found = comparison(
        run("fl", best=0.85, at=90.0), run("fedoptima", at=30.0), run("oafl", best=0.79)
    )
    assert found.target == pytest.approx(0.792)
    assert found.reference == "fedoptima"
    assert [row.ratio for row in found.rows] == [3.0, 1.0, None]
    assert cells(found, "time to 79.2 %, s") == ["90", "30", "never"]
    assert cells(found, "x fedoptima's") == ["3", "1", "-"]
    assert "99 % of the best accuracy of fedoptima" in found.to_markdown()


def test_without_fedoptima_the_best_sets_the_target_and_the_fastest_the_measure() -> None:
    found = comparison(run("fl", best=0.80, at=90.0), run("pipar", best=0.805, at=30.0))
    assert found.target == pytest.approx(0.99 * 0.805)
    assert found.reference == "pipar"
    assert [row.ratio for row in found.rows] == [3.0, 1.0]


def test_a_given_target_that_fedoptima_misses_is_measured_by_who_reached_it() -> None:
    found = comparison(run("fedoptima"), run("fl", best=0.9), target=0.85)
    assert found.target == 0.85
    assert found.reference == "fl"
    assert cells(found, "time to 85.0 %, s") == ["never", "50"]


def test_a_target_that_nobody_reaches_has_no_measure() -> None:
    found = comparison(run("fedoptima"), run("fl"), target=0.95)
    assert found.reference is None
    assert cells(found, "time to 95.0 %, s") == ["never", "never"]
    assert not any(name.startswith("x ") for name, _ in lines(found))


def test_seeds_are_a_mean_and_a_deviation() -> None:
    found = comparison(run("fl", 1, best=0.8, at=40.0), run("fl", 2, best=0.9, at=60.0), target=0.8)
    [row] = found.rows
    assert row.mean is not None
    assert row.deviation is not None
    assert row.mean.best_accuracy == pytest.approx(0.85)
    assert row.deviation.best_accuracy == pytest.approx(stdev([0.8, 0.9]))
    assert (row.time_to_target, row.reached, row.seeds) == (50.0, 2, (1, 2))
    assert cells(found, "best accuracy, %") == ["85.0 ± 7.1"]
    assert cells(found, "MB up/epoch") == ["5"]  # the seeds agree


def test_a_time_that_not_every_seed_has_says_so_and_gives_no_ratio() -> None:
    found = comparison(run("fl", 1, best=0.8), run("fl", 2, best=0.7), run("oafl"), target=0.8)
    assert found.rows[0].ratio is None
    assert cells(found, "time to 80.0 %, s") == ["50 (1 of 2)", "50"]


def test_figures_are_over_the_seeds_that_were_finished() -> None:
    found = comparison(run("fl", 1), Run("fl", 2, error="loss is nan"), Run("oafl", 1, error="x"))
    fl, oafl = found.rows
    assert (fl.seeds, fl.errors, fl.deviation) == ((1,), {2: "loss is nan"}, None)
    assert oafl.mean is None
    assert cells(found, "failed runs") == ["1", "1"]
    assert cells(found, "final accuracy, %") == ["70.0", "failed"]


def test_equal_errors_are_said_once() -> None:
    found = comparison(Run("fl", 1, error="no data"), Run("oafl", 1, error="no data"))
    assert found.failures() == ["fl (seed 1), oafl (seed 1): no data"]
    assert "- fl (seed 1), oafl (seed 1): no data\n" in found.to_markdown()


def test_a_dry_comparison_has_no_lines_about_accuracy() -> None:
    timing = replace(FIGURES, accuracy=None, best_accuracy=None)
    found = comparison(Run("fl", 1, figures=timing))
    assert found.target is None
    assert not any("accuracy" in name or "time to" in name for name, _ in lines(found))
    assert cells(found, "peak server MiB") == ["7"]


def test_a_task_without_accuracy_has_lines_about_its_loss() -> None:
    learned = replace(FIGURES, accuracy=None, best_accuracy=None, loss=0.5, best_loss=0.25)
    curve = (Moment(1.0, 1.0, None, 0.25), Moment(2.0, 2.0, None, 0.5))
    found = comparison(
        Run("fl", 1, figures=learned, curve=curve), Run("oafl", 1, error="loss is nan")
    )
    assert cells(found, "final loss") == ["0.5", "failed"]
    assert cells(found, "best loss") == ["0.25", "failed"]
    assert not any("accuracy" in name for name, _ in lines(found))
    aimed = replace(found, about=replace(found.about, target=0.8))
    assert not any("time to" in name for name, _ in lines(aimed))
    assert "No time to the target is taken: the task has no accuracy." in str(aimed)
    assert "loss" in found._repr_html_()
    figure = found.plot()
    assert figure.layout.yaxis.title.text == "loss"
    assert list(figure.data[0].y) == [0.25, 0.5]


def test_the_loss_has_no_line_where_there_is_an_accuracy() -> None:
    learned = replace(FIGURES, loss=0.5, best_loss=0.25)
    assert not any("loss" in name for name, _ in lines(comparison(Run("fl", 1, figures=learned))))


def test_the_markdown_table_is_rectangular() -> None:
    text = comparison(run("fl", 1), run("fl", 2, best=0.9), run("oafl", 1)).to_markdown()
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_the_test_accuracy_has_a_line_where_validation_data_was_held_out() -> None:
    assert "test accuracy, %" not in dict(lines(comparison(run("fl"))))
    held_out = run("fl")
    assert held_out.figures is not None
    held_out = replace(held_out, figures=replace(held_out.figures, test_accuracy=0.65))
    assert cells(comparison(held_out), "test accuracy, %") == ["65.0"]
