"""Plans against runs: a small dry one, and what counts as off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import TINY
from tools.plan_check import compared, main


def test_a_run_does_what_its_plan_said(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    out = tmp_path / "out"
    command = [str(recipe), "--dry", "--methods", "fedoptima", "fl", "--out", str(out)]
    assert main([*command, "--commit", "abc"]) == 0
    record = json.loads((out / "dry.json").read_text())
    assert [row["method"] for row in record["runs"]] == ["fedoptima", "fl"]
    assert all(row["within"] for row in record["runs"])


def test_samples_and_all_bytes_together_may_be_off_by_15_percent() -> None:
    row = compared([100.0, 900.0, 100.0], [86.0, 900.0, 140.0])
    assert row["useful samples/s"] == {"plan": 100.0, "run": 86.0, "off": -0.14}
    assert row["bytes/s down"]["off"] == pytest.approx(0.4)
    assert row["bytes off"] == pytest.approx(0.04)
    assert row["within"]
    assert not compared([100.0, 900.0, 100.0], [84.0, 900.0, 100.0])["within"]
    assert not compared([100.0, 900.0, 100.0], [100.0, 1100.0, 100.0])["within"]
