"""R(p) = T(p) / T(0): by hand, and of small dry runs whose devices come and go."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedoptima.comparison.result import Comparison, lines
from fedoptima.comparison.retained import LEAVING, measures_retention, retention_of
from fedoptima.comparison.retention import retention, unstable
from fedoptima.comparison.rows import Run
from fedoptima.core.errors import ConfigError
from tests.comparison.recipes import tiny
from tests.comparison.test_comparison import FIGURES, comparison


def swept(*runs: Run, values: tuple[object, ...] = (0, 0.5)) -> Comparison:
    plain = comparison(*runs)
    return Comparison(replace(plain.about, vary={LEAVING: list(values)}), runs)


def run(p: float, seed: int, useful: float, device: float) -> Run:
    figures = replace(FIGURES, useful_throughput=useful, device_throughput=device)
    return Run("pipar", seed, figures=figures, settings={LEAVING: p})


def test_every_seed_is_compared_with_itself_where_no_device_leaves() -> None:
    found = swept(
        run(0, 1, 100.0, 100.0), run(0, 2, 200.0, 200.0), run(0.5, 1, 10, 50), run(0.5, 2, 60, 50)
    )
    stable, leaving = (retention_of(found, row) for row in found.rows)
    assert stable["useful"] is not None
    assert stable["useful"].mean == 1.0
    assert leaving["useful"] is not None
    assert leaving["useful"].mean == pytest.approx((0.1 + 0.3) / 2)
    assert leaving["device"] is not None
    assert leaving["device"].mean == pytest.approx((0.5 + 0.25) / 2)
    assert dict(lines(found))["R, useful samples"] == ["1.00", "0.20 ± 0.14"]
    [_, row] = json.loads(found.to_json())["rows"]
    assert row["retention"]["useful"]["mean"] == pytest.approx(0.2)


def test_without_a_stable_run_there_is_no_retention() -> None:
    assert not measures_retention(swept(run(0.5, 1, 1, 1), values=(0.2, 0.5)))
    assert not measures_retention(comparison(run(0, 1, 1, 1)))
    failed = Run("pipar", 1, error="no", settings={LEAVING: 0})
    found = swept(failed, run(0.5, 1, 10, 50))
    assert retention_of(found, found.rows[1]) == {"useful": None, "device": None}


def test_retention_is_measured_on_runs_of_equal_length_with_bandwidths_that_vary(
    tmp_path: Path,
) -> None:
    found = retention(
        tiny(tmp_path),
        (5.0, 10.0),
        probabilities=(0.0, 0.5),
        methods=("fedoptima", "splitfed"),
        seeds=(1,),
        hours=0.003,
        every=0.5,
        jobs=1,
        out=tmp_path / "out",
    )
    assert not found.failed
    assert measures_retention(found)
    with (tmp_path / "out/sweep.csv").open() as file:
        table = list(csv.DictReader(file))
    for line in table:
        speed = next(
            float(other["useful_throughput"])
            for other in table
            if other["method"] == line["method"] and other[LEAVING] == "0.0"
        )
        kept = float(line["useful_throughput"]) / speed
        assert float(line["retention_useful"]) == pytest.approx(kept)
    kept_by = {x["method"]: float(x["retention_useful"]) for x in table if x[LEAVING] == "0.5"}
    assert 0 < kept_by["fedoptima"] < 1
    assert kept_by["splitfed"] < kept_by["fedoptima"]
    recipe = unstable(tiny(tmp_path), (5.0, 10.0), hours=1.0)
    assert recipe.fleet is not None
    assert recipe.fleet.churn is not None
    assert recipe.fleet.churn.mbps == (5.0, 10.0)
    assert (recipe.stop.hours, recipe.stop.epochs) == (1.0, None)


def test_retention_needs_the_stable_case(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="add 0"):
        retention(tiny(tmp_path), (5.0, 10.0), probabilities=(0.5,))
