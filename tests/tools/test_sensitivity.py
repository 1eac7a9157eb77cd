"""The tool: files that are whole, and the same again when it is started again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedoptima.comparison.sensitivity import Sensitivity
from fedoptima.config.load import load_recipe
from tests.cli.conftest import TINY
from tools.records import ROOT
from tools.sensitivity import grid_of, main


def test_a_grid_its_map_and_its_words(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    command = [str(recipe), "--corners", "--jobs", "1", "--commit", "abc"]
    command += ["--out", str(tmp_path / "out"), "--methods", "fedoptima", "fl"]
    main(command)
    found = Sensitivity.from_json((tmp_path / "out/tiny.json").read_text())
    assert not found.missing
    assert len(found.times) == 16
    assert found.methods == ("fedoptima", "fl")
    assert found.origin["fedoptima"].endswith("commit abc")
    assert "<svg" in (tmp_path / "out/tiny.svg").read_text()
    assert "tiny: fedoptima is first in" in (tmp_path / "out/words.md").read_text()


def test_what_has_changed_is_measured_again_and_the_rest_is_kept(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    file = tmp_path / "out/tiny.json"
    command = [str(recipe), "--corners", "--jobs", "1", "--out", str(tmp_path / "out")]
    command += ["--methods", "fedoptima", "fl"]
    main(command)
    measured = Sensitivity.from_json(file.read_text())
    wrong = {cell: dict.fromkeys(measured.methods, 1.0) for cell in measured.times}
    file.write_text(replace(measured, times=wrong).to_json())
    main([*command, "--again", "fedoptima", "--commit", "new"])
    found = Sensitivity.from_json(file.read_text())
    assert found.origin == measured.origin
    [later] = found.later
    assert later["methods"] == "fedoptima"
    assert "commit new" in later["fedoptima"]
    assert "commit new" in (tmp_path / "out/words.md").read_text()
    for cell, times in found.times.items():
        assert times["fedoptima"] == measured.times[cell]["fedoptima"] != 1.0
        assert times["fl"] == 1.0


def test_what_was_never_measured_can_be_measured_again(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    command = [str(recipe), "--corners", "--jobs", "1", "--out", str(tmp_path / "new")]
    main([*command, "--methods", "fl", "--again", "fl"])
    assert not Sensitivity.from_json((tmp_path / "new/tiny.json").read_text()).missing


def test_testbed_b_has_a_grid_around_its_own_server() -> None:
    a, b = (
        load_recipe(ROOT / "recipes" / f"testbed_{name}.toml")
        for name in ("a_vgg5_cifar10", "b_mobilenet_tinyimagenet")
    )
    assert 150.0 in grid_of(a).server_gflops
    assert 11600.0 in grid_of(b).server_gflops
    assert len(list(grid_of(a).cells())) == len(list(grid_of(b).cells())) == 360


def test_the_scheduler_ablation_is_a_table(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY.replace("count = 2", "count = 3"))
    main(
        [
            str(recipe),
            "--scheduler",
            "--epochs",
            "2",
            "--out",
            str(tmp_path / "out"),
            "--commit",
            "abc",
        ]
    )
    assert "| as described |" in (tmp_path / "out/scheduler.md").read_text()
    assert '"omega = 1"' in (tmp_path / "out/tiny.json").read_text()
