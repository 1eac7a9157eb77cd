"""A sweep's figures: lines along one key, and a page that is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedoptima.comparison.result import Comparison
from fedoptima.comparison.retained import LEAVING
from fedoptima.comparison.rows import Run
from fedoptima.reporting.figures.figure import Figure
from fedoptima.reporting.figures.sweep import sweep_figures
from fedoptima.reporting.sweep_page import write_sweep_page
from tests.comparison.test_comparison import FIGURES, comparison
from tests.reporting.test_report_page import Reader

pytest.importorskip("plotly", reason="plotly is an extra")


def swept(vary: dict[str, list[object]], *runs: Run) -> Comparison:
    plain = comparison(*runs)
    about = type(plain.about)(**{**vars(plain.about), "vary": vary})
    return Comparison(about, runs)


def run(method: str, seed: int = 1, seconds: float = 100.0, **settings: object) -> Run:
    keys = {key.replace("__", "."): value for key, value in settings.items()}
    figures = type(FIGURES)(**{**vars(FIGURES), "seconds": seconds})
    return Run(method, seed, figures=figures, settings=keys)


def figure(sweep: Comparison, name: str) -> Figure:
    [found] = [figure for figure in sweep_figures(sweep) if figure.name == name]
    return found


def test_a_line_for_each_method_and_choice_of_the_other_keys() -> None:
    sweep = swept(
        {"method.activation_cap": [4, 100], "model.name": ["a", "b"]},
        *(
            run("fedoptima", seed, seed * cap, method__activation_cap=cap, model__name=name)
            for cap in (4, 100)
            for name in ("a", "b")
            for seed in (1, 2)
        ),
        *(run("fl", seed, 7.0, model__name=name) for name in ("a", "b") for seed in (1, 2)),
    )
    drawn = figure(sweep, "seconds")
    assert [trace["name"] for trace in drawn.traces] == [
        "fedoptima, model.name=a",
        "fedoptima, model.name=b",
        "fl, model.name=a",
        "fl, model.name=b",
    ]
    first, _, flat, _ = drawn.traces
    assert (first["x"], first["y"]) == ([4, 100], [6.0, 150.0])
    assert first["error_y"] == {"array": [pytest.approx(2.82843), pytest.approx(70.7107)]}
    assert (flat["x"], flat["y"]) == ([4, 100], [7.0, 7.0])  # it has no cap: the same everywhere
    assert drawn.layout["xaxis"]["type"] == "log"  # type: ignore[index]


def test_words_are_places_and_figures_that_no_run_has_are_left_out() -> None:
    sweep = swept(
        {"training.device.name": ["sgd", "adam"]},
        run("fl", training__device__name="sgd"),
        Run("fl", 1, error="loss is nan", settings={"training.device.name": "adam"}),
    )
    drawn = figure(sweep, "accuracy")
    assert drawn.layout["xaxis"]["type"] == "category"  # type: ignore[index]
    assert [trace["x"] for trace in drawn.traces] == [["sgd"]]
    assert not [figure for figure in sweep_figures(sweep) if figure.name == "target"]


def test_the_loss_is_drawn_where_there_is_no_accuracy() -> None:
    def learned(**figures: float | None) -> Comparison:
        known = type(FIGURES)(**{**vars(FIGURES), "loss": 0.5, "best_loss": 0.25, **figures})
        runs = [Run("fl", 1, figures=known, settings={"seed": n}) for n in (1, 2)]
        return swept({"seed": [1, 2]}, *runs)

    without = learned(accuracy=None, best_accuracy=None)
    assert figure(without, "loss").traces[0]["y"] == [0.5, 0.5]
    assert figure(without, "best-loss").traces[0]["y"] == [0.25, 0.25]
    assert not [each for each in sweep_figures(learned()) if "loss" in each.name]


def test_the_page_is_whole_and_no_value_breaks_out_of_its_place(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)"
    sweep = swept({"data.directory": [evil]}, run("fl", data__directory=evil))
    write_sweep_page(sweep, tmp_path / "sweep.html")
    reader = Reader((tmp_path / "sweep.html").read_text())
    assert reader.open == []
    assert "sweep-accuracy" in reader.ids()
    assert evil in reader.text
    assert not [text for text in reader.scripts if text.startswith("alert")]


def test_shares_of_idle_time_and_retention_have_figures_of_their_own() -> None:
    def leaving(p: float, useful: float) -> Run:
        shares = {"server_idle_share": 0.5, "device_idle_1_share": 0.2, "device_idle_2_share": 0.1}
        figures = type(FIGURES)(**{**vars(FIGURES), **shares, "useful_throughput": useful})
        return Run("fl", 1, figures=figures, settings={LEAVING: p})

    sweep = swept({LEAVING: [0, 0.5]}, leaving(0, 100.0), leaving(0.5, 40.0))
    assert figure(sweep, "server-idle-share").traces[0]["y"] == [50.0, 50.0]
    assert figure(sweep, "device-idle-share").traces[0]["y"] == [30.0, 30.0]
    assert figure(sweep, "useful").traces[0]["y"] == [100.0, 40.0]
    assert figure(sweep, "retention-useful").traces[0]["y"] == [1.0, 0.4]
    assert figure(sweep, "retention-device").traces[0]["y"] == [1.0, 1.0]
