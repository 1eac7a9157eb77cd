"""FedOptima+ against the others over a grid: a small one, whose files are whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedoptima.comparison.sensitivity import Grid, Sensitivity
from fedoptima.methods.registry import METHODS
from tests.cli.conftest import TINY
from tools.plus_grid import main, methods, share, standing, words


def test_every_other_method_may_code_what_it_sends() -> None:
    chosen = methods()
    assert chosen["fedoptima_plus"] == ("fedoptima_plus", {})
    assert chosen["fl, int8"] == ("fl", {"update_codec": "int8"})
    sent = dict.fromkeys(("codec", "gradient_codec", "update_codec"), "int8")
    assert chosen["pipar, own split, int8"] == ("pipar", {"own_split": True, **sent})
    assert chosen["oafl"] == ("oafl", {})
    for method, options in chosen.values():
        METHODS[method](4, **options)  # nothing is coded that the method does not send


def test_a_grid_its_map_and_its_words(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    out = tmp_path / "out"
    command = [str(recipe), "--jobs", "1", "--commit", "abc", "--out", str(out)]
    status = main([*command, "--methods", "fl"], Grid((1.0,), (25.0,), (0.0,), (20.0,)))
    found = Sensitivity.from_json((out / "tiny.json").read_text())
    assert not found.missing
    assert found.methods == ("fedoptima_plus", "fl", "fl, int8")
    assert status == (0 if share(found, "first") >= 0.95 else 1)
    assert "fedoptima_plus" in (out / "tiny.svg").read_text()
    assert "Of 1 cells fedoptima_plus is" in (out / "words.md").read_text()


def test_exceptions_are_named_and_what_is_level_is_not_called_first(tmp_path: Path) -> None:
    grid = Grid((1.0,), (25.0, 50.0, 100.0), (0.0,), (150.0,))
    first, second, third = grid.cells()
    names = ("fedoptima_plus", "fl")
    times = {
        cell: dict(zip(names, each, strict=True))
        for cell, each in ((first, (1.0, 2.0)), (second, (3.0, 2.0)), (third, (2.002, 2.0)))
    }
    found = Sensitivity("some", grid, names, times, reference="fedoptima_plus")
    assert standing(found) == {"first": [first], "level": [third], "behind": [second]}
    assert share(found, "first") == pytest.approx(1 / 3)
    assert share(found, "first", "level") == pytest.approx(2 / 3)
    (tmp_path / "some.json").write_text(found.to_json())
    text = words(tmp_path)
    assert (
        "Of 3 cells fedoptima_plus is first in 1, level in 1, behind in 1: first in 33.3%" in text
    )
    behind, level = text.index("Behind ("), text.index("Level, within half a percent")
    assert behind < text.index("50 Mbps, 0 ms, 150 GFLOP/s: fl (1.500)") < level
    assert level < text.index("100 Mbps, 0 ms, 150 GFLOP/s: fl (1.001)")
