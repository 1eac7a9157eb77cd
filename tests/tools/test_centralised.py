"""The ceilings' command on the digits, and what it does by itself that the product does too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedoptima.core.errors import ConfigError
from tools.centralised.__main__ import CONFIGURATIONS, main
from tools.centralised.settings import Settings, read_grid

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "demo_digits.toml"
GRIDS = ROOT / "tools" / "centralised" / "grids"
GRID = """
[base]
epochs = 2
optimiser = "sgd"

[[try]]
rate = 1e-6

[[try]]
rate = 0.05
"""


def run(folder: Path, grid: str, *more: str) -> dict[str, Any]:
    (folder / "grid.toml").write_text(grid, encoding="utf-8")
    names = [str(RECIPE), "--grid", str(folder / "grid.toml"), "--out", str(folder)]
    main([*names, "--seeds", "2", "--commit", "abc", *more])
    text = (folder / "demo_digits.json").read_text(encoding="utf-8")
    record: dict[str, Any] = json.loads(text)
    return record


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("centralised")
    return folder, run(folder, GRID)


def test_the_configuration_best_on_the_held_out_share_is_tested_with_every_seed(
    done: tuple[Path, dict[str, Any]],
) -> None:
    _, record = done
    slow, quick = record["configurations"]
    assert slow["accuracy"][-1] < 0.5 < quick["accuracy"][-1]
    assert record["chosen"] == quick["settings"]
    assert [one["seed"] for one in record["runs"]] == [1, 2]
    assert all(one["epochs"] == [1, 2] for one in (slow, quick, *record["runs"]))
    last = [one["accuracy"][-1] for one in record["runs"]]
    assert record["test accuracy"]["last epoch, lowest and highest"] == [min(last), max(last)]


def test_what_is_recorded_is_not_trained_again(
    done: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, before = done
    after = run(folder, GRID + "\n[[try]]\nepochs = 1\nrate = 1e-7\n")
    assert after["configurations"][:2] == before["configurations"]
    assert after["runs"] == before["runs"]
    assert after["test accuracy"] == before["test accuracy"]
    assert "seed 1" not in capsys.readouterr().out


def test_only_trainings_that_were_long_enough_are_chosen_from(tmp_path: Path) -> None:
    more = GRID + "\n[[try]]\nepochs = 1\nrate = 0.05\n"
    short = run(tmp_path, more, "--epochs", "1")  # the third is the second then
    assert [one["settings"]["rate"] for one in short["configurations"]] == [1e-6, 0.05]
    assert short["chosen"]["epochs"] == 1
    long = run(tmp_path, GRID.replace("0.05", "1e-7"), "--least-epochs", "2")
    assert long["chosen"]["epochs"] == 2
    assert all(one["epochs"][-1] == 2 for one in long["runs"])
    assert long["missing for a ceiling"] == [
        "10 configurations with at least 2 epochs",
        "1 seeds of the best with at least 2 epochs",
    ]


def test_an_unknown_key_of_a_grid_is_named(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("[[try]]\nepochs = 1\nspeed = 2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="try 1: speed: unknown key"):
        read_grid(tmp_path / "grid.toml")


@pytest.mark.parametrize("grid", sorted(GRIDS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_grid_is_large_enough_for_a_ceiling(grid: Path) -> None:
    assert len(read_grid(grid)) >= CONFIGURATIONS


def test_rates_rise_then_fall_to_nothing() -> None:
    rates = Settings(epochs=1, rate=2.0, warmup=0.1).rates(100)
    assert rates[:10] == pytest.approx([0.2 * step for step in range(1, 11)])
    assert rates[10] == 2.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.001
