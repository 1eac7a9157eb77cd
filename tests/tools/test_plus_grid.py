"""FedOptima+ against the others over a grid: a small one, whose files are whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedoptima.comparison.dry_pace import Conditions
from fedoptima.comparison.sensitivity import Grid, Sensitivity
from tests.cli.conftest import TINY
from tools.plus_grid import main, methods, share_first, words


def test_every_other_method_may_code_what_it_sends() -> None:
    chosen = methods()
    assert chosen["fedoptima_plus"] == ("fedoptima_plus", {})
    assert chosen["fl, int8"] == ("fl", {"update_codec": "int8"})
    sent = dict.fromkeys(("codec", "gradient_codec", "update_codec"), "int8")
    assert chosen["pipar, own split, int8"] == ("pipar", {"own_split": True, **sent})
    assert chosen["oafl"] == ("oafl", {})


def test_a_grid_its_map_and_its_words(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    out = tmp_path / "out"
    command = [str(recipe), "--jobs", "1", "--commit", "abc", "--out", str(out)]
    status = main([*command, "--methods", "fl"], Grid((1.0,), (25.0,), (0.0,), (20.0,)))
    found = Sensitivity.from_json((out / "tiny.json").read_text())
    assert not found.missing
    assert found.methods == ("fedoptima_plus", "fl", "fl, int8")
    assert status == (0 if share_first(found) >= 0.95 else 1)
    assert "fedoptima_plus" in (out / "tiny.svg").read_text()
    assert "tiny: fedoptima_plus is first in" in (out / "words.md").read_text()


def test_exceptions_are_named(tmp_path: Path) -> None:
    grid = Grid((1.0,), (25.0, 50.0), (0.0,), (150.0,))
    first, second = grid.cells()
    times = {first: {"fedoptima_plus": 1.0, "fl": 2.0}, second: {"fedoptima_plus": 3.0, "fl": 2.0}}
    found = Sensitivity("some", grid, ("fedoptima_plus", "fl"), times, reference="fedoptima_plus")
    assert second == Conditions(1.0, 50.0, 0.0, 150.0)
    (tmp_path / "some.json").write_text(found.to_json())
    text = words(tmp_path)
    assert "fedoptima_plus is first in 1 of 2 cells (50.0 %)" in text
    assert "- fl is first with devices of any speed, links of 50 Mbps" in text
    assert "fedoptima_plus takes 1.50 times as long" in text
    assert share_first(found) == 0.5
    equal = {"fedoptima_plus": 2.0, "fl": 2.0}
    (tmp_path / "some.json").write_text(replace(found, times={first: equal}).to_json())
    text = words(tmp_path)
    assert "In 1 of the cells it is first together with another" in text
    assert "- devices x 1, 25 Mbps, 0 ms, 150 GFLOP/s: fl" in text
    assert replace(found, times={first: times[first]}).winner(first) == "fedoptima_plus"
