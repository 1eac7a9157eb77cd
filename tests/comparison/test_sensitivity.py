"""A grid of conditions: measured once, named in words, drawn."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedoptima.comparison.dry_pace import Conditions, pace_of, prepared
from fedoptima.comparison.regions import regions, summary
from fedoptima.comparison.sensitivity import Grid, Sensitivity, Times, measure
from fedoptima.core.errors import ConfigError
from fedoptima.core.stopping import StopRule
from fedoptima.reporting.heat_map import heat_map
from tests.comparison.recipes import tiny

GRID = Grid(devices=(1 / 6, 1.0), mbps=(50.0, 100.0), latency_ms=(0.0,), server_gflops=(20.0, 40.0))
METHODS = ("fedoptima", "pipar", "oafl")


def times(cell: Conditions) -> Times:
    """PiPar is first with slow devices; OAFL in one cell of the others."""
    pipar = 0.5 if cell.devices < 1 else 2.0
    oafl = 0.8 if cell == Conditions(1.0, 100.0, 0.0, 40.0) else None
    return {"fedoptima": 1.0, "pipar": pipar, "oafl": oafl}


FOUND = Sensitivity("example", GRID, METHODS, {cell: times(cell) for cell in GRID.cells()})


def test_every_cell_where_fedoptima_is_not_first_is_named_and_no_other() -> None:
    named = {
        (region.winner, region.spans, region.cells, region.behind) for region in regions(FOUND)
    }
    assert named == {
        ("pipar", ((0, 0), (0, 1), (0, 0), (0, 1)), 4, (2.0, 2.0)),
        ("oafl", ((1, 1), (1, 1), (0, 0), (1, 1)), 1, (1.25, 1.25)),
    }
    assert summary(FOUND) == [
        "example: fedoptima is first in 3 of 8 cells (37.5 %).",
        "pipar is first with devices x 1/6, any links, any latency, any server (4 cells; "
        "fedoptima takes 2.00 times as long).",
        "oafl is first with devices x 1, links of 100 Mbps, any latency, server of 40 GFLOP/s "
        "(1 cell; fedoptima takes 1.25 times as long).",
    ]


def test_where_fedoptima_is_always_first_that_is_said() -> None:
    only = Sensitivity(
        "example", GRID, METHODS, {cell: {"fedoptima": 1.0, "pipar": 1.5} for cell in GRID.cells()}
    )
    [text] = summary(only)
    assert text == (
        "example: fedoptima is first in 8 of 8 cells: there is none in which another method is."
    )


def test_an_odd_shape_is_covered_exactly() -> None:
    lost = {Conditions(1.0, 50.0, 0.0, 20.0), Conditions(1.0, 50.0, 0.0, 40.0)}
    lost.add(Conditions(1.0, 100.0, 0.0, 20.0))
    found = Sensitivity(
        "example",
        GRID,
        METHODS,
        {c: {"fedoptima": 1.0, "pipar": 0.9 if c in lost else 1.1} for c in GRID.cells()},
    )
    covered = set()
    for region in regions(found):
        for cell in GRID.cells():
            places = zip(GRID.place(cell), region.spans, strict=True)
            if all(low <= place <= high for place, (low, high) in places):
                covered.add(cell)
    assert covered == lost


def test_a_map_has_a_cell_for_each_condition_in_the_winners_colour() -> None:
    root = ElementTree.fromstring(heat_map(FOUND))
    space = "{http://www.w3.org/2000/svg}"
    cells = [r for r in root.iter(f"{space}rect") if r.find(f"{space}title") is not None]
    assert len(cells) == 8
    assert len({cell.get("fill") for cell in cells}) == 3
    texts = [text.text for text in root.iter(f"{space}text")]
    assert texts.count("0.50") == 4
    assert texts.count("0.80") == 1
    assert "devices x 1/6, latency 0 ms" in texts


def test_a_grid_survives_its_file() -> None:
    again = Sensitivity.from_json(FOUND.to_json())
    assert again == FOUND
    assert again.lead(Conditions(1 / 6, 50.0, 0.0, 20.0)) == 0.5


def test_what_a_file_holds_is_not_measured_again(tmp_path: Path) -> None:
    recipe, file = tiny(tmp_path), tmp_path / "out" / "grid.json"
    grid = Grid(devices=(1.0,), mbps=(5.0, 50.0), latency_ms=(0.0,), server_gflops=(3.0,))
    methods = {"fl": ("fl", {}), "pipar, 2 parts": ("pipar", {"micro_batches": 2})}
    seen: list[int] = []
    whole = measure(
        recipe, grid, methods, file=file, jobs=1, news=lambda done, _: seen.append(done)
    )
    assert seen == [1, 2]
    cell = Conditions(1.0, 5.0, 0.0, 3.0)
    alone = prepared(recipe, "pipar", {"micro_batches": 2}, cell, StopRule(rounds=1))
    assert whole.times[cell]["pipar, 2 parts"] == pace_of(alone)
    lines = file.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("  [0, 1,")]
    file.write_text("".join(kept).replace("],\n ]", "]\n ]"))
    again = measure(
        recipe, grid, methods, file=file, jobs=1, news=lambda done, _: seen.append(done)
    )
    assert seen == [1, 2, 2]
    assert file.read_text() == "".join(lines)
    for cell, found in whole.times.items():
        assert again.times[cell] == pytest.approx(found, rel=1e-3)


def test_a_file_of_another_grid_is_not_mixed_in(tmp_path: Path) -> None:
    file = tmp_path / "grid.json"
    file.write_text(FOUND.to_json())
    with pytest.raises(ConfigError, match="another recipe, grid"):
        measure(tiny(tmp_path), GRID, {"fl": ("fl", {})}, file=file, jobs=1)


def test_what_one_process_has_measured_is_kept_when_it_is_stopped(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == total - 1:
            raise KeyboardInterrupt

    speeds = tuple(float(each) for each in range(1, 13))
    grid = Grid(devices=(1.0,), mbps=(50.0,), latency_ms=(0.0,), server_gflops=speeds)
    file = tmp_path / "grid.json"
    with pytest.raises(KeyboardInterrupt):
        measure(tiny(tmp_path), grid, {"fl": ("fl", {})}, file=file, jobs=1, news=stop)
    assert len(Sensitivity.from_json(file.read_text()).times) == 10
