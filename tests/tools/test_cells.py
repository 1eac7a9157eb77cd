"""FedOptima+ against the strongest baselines: what is trained once, and whose time counts."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from fedoptima.comparison.dry_pace import Conditions
from fedoptima.comparison.sensitivity import Grid
from fedoptima.config.load import load_recipe
from fedoptima.reproduction.records import Made, Record
from tools.cells.__main__ import IMAGES, TEXT, cells_of, main
from tools.cells.choice import Cell, Entry, choose, entries, recipe_for
from tools.cells.table import rows_of, verdicts
from tools.records import ROOT

IMAGE = load_recipe(ROOT / "recipes/paper/a_image.toml")
TEXT_RECIPE = load_recipe(ROOT / "recipes/paper/a_text.toml")
NEAR, FAR = Conditions(1.0, 50.0, 0.0, 150.0), Conditions(1 / 12, 25.0, 0.0, 150.0)
NEARER = Conditions(1.0, 400.0, 0.0, 150.0)
FORM = {"options": {"codec": "int8", "auxiliary": "light", "train_every": 1}, "split": 1}


def choice(*baselines: str) -> dict[str, object]:
    told = [{"method": name, "options": {}, "pace": 0.001} for name in baselines]
    return {"plus": FORM, "baselines": told, "samples": 50_000}


def planned() -> list[Entry]:
    chosen = {NEAR: choice("pipar", "oafl"), FAR: choice("oafl", "pipar")}
    return list(entries(IMAGE, chosen, epochs=[40.0, 80.0], seeds=[1]))


def test_the_cells_are_those_that_were_fixed() -> None:
    assert len(list(IMAGES.cells())) == 9
    assert len(list(TEXT.cells())) == 3
    assert {cell.server_gflops for cell in (*IMAGES.cells(), *TEXT.cells())} == {150.0}


def test_cells_can_be_left_out() -> None:
    [only] = cells_of(TEXT_RECIPE, [Fraction("1/6")]).cells()
    assert only == Conditions(1 / 6, 50.0, 0.0, 150.0)
    assert cells_of(TEXT_RECIPE) == TEXT
    assert cells_of(IMAGE) == IMAGES


def test_only_what_depends_on_the_fleet_is_trained_in_each_cell() -> None:
    found = planned()
    runs = {(e.method, e.conditions, e.epochs): e.run for e in found}
    assert len(found) == 12
    assert runs["pipar", NEAR, 40.0].id == runs["pipar", FAR, 40.0].id
    assert runs["oafl", NEAR, 40.0].id != runs["oafl", FAR, 40.0].id
    assert runs["fedoptima_plus", NEAR, 40.0].id != runs["fedoptima_plus", FAR, 40.0].id
    plus = runs["fedoptima_plus", FAR, 40.0].recipe
    assert plus.split.at == 1
    assert plus.fleet is not None
    assert {group.mbps for group in plus.fleet.devices} == {25.0}


def test_a_method_whose_devices_do_not_wait_is_trained_in_each_cell() -> None:
    chosen = {NEAR: choice("cse_fsl", "fl"), FAR: choice("cse_fsl", "fl")}
    found = list(entries(IMAGE, chosen, epochs=[40.0], seeds=[1]))
    runs = {(e.method, e.conditions): e for e in found}
    assert runs["cse_fsl", NEAR].run.id != runs["cse_fsl", FAR].run.id
    assert runs["cse_fsl", FAR].seconds_per_epoch is None  # its own times count
    assert runs["fl", NEAR].run.id == runs["fl", FAR].run.id


def test_what_is_coded_is_trained_once_for_each_cut() -> None:
    cuts = {NEAR: 1, NEARER: 1, FAR: 2}
    chosen = {where: choice() for where in cuts}
    for where, cut in cuts.items():
        coded = {"own_split": True, "codec": "int8", "gradient_codec": "int8"}
        one = {"method": "pipar", "options": coded, "pace": 0.001, "split": cut}
        chosen[where]["baselines"] = [one]
    found = list(entries(IMAGE, chosen, epochs=[40.0], seeds=[1]))
    runs = {e.conditions: e.run for e in found if e.method == "pipar"}
    assert {where: run.recipe.split.at for where, run in runs.items()} == cuts
    assert runs[NEAR].id == runs[NEARER].id != runs[FAR].id


def test_the_cut_of_what_is_coded_is_that_of_the_cell() -> None:
    recipe = load_recipe(ROOT / "recipes/paper/digits.toml")
    found = choose(Cell(recipe, Conditions(1.0, 0.5, 0.0, 3.0)))
    coded = [one for one in found["baselines"] if "codec" in one["options"]]
    assert coded
    assert all(one["split"] >= 1 for one in coded)


def test_every_method_has_the_settings_that_the_recipe_has_for_it() -> None:
    tuned = {name: own.tables for name, own in IMAGE.methods.items()}
    for name, like in (("fedoptima_plus", "fedoptima"), ("pipar", "pipar"), ("oafl", "oafl")):
        training = recipe_for(IMAGE, name, {}).training
        for key, value in tuned[like].get("training", {}).items():
            own = getattr(training, key)
            own = own.model_dump(exclude_unset=True) if hasattr(own, "model_dump") else own
            assert value.items() <= own.items() if isinstance(value, dict) else own == value
    assert recipe_for(IMAGE, "oafl", {}).method.options["alpha"] == 0.8


class Finished:
    """Every run reached 76 % after half of its epochs, and the longer ones 81 % at the end."""

    def __init__(self, found: list[Entry]) -> None:
        self._of = {entry.run.id: entry for entry in found}

    def get(self, run: str) -> Record | None:
        entry = self._of[run]
        if entry.method == "oafl" and entry.conditions == FAR:
            return None
        end = 0.81 if entry.epochs > 50 else 0.79
        curve = [(100.0, entry.epochs / 2, 0.76), (200.0, entry.epochs, end)]
        made = Made("", "", "", "", "")
        return Record(run, "w", "training", entry.method, {}, 1, {}, curve, made)


def test_the_best_length_counts_and_a_barriers_time_is_that_of_the_cell() -> None:
    found = planned()
    rows = list(rows_of(found, Finished(found), (0.75, 0.80)))
    named = {(row["method"], row["devices"]): row for row in rows}
    plus, pipar = named["fedoptima_plus", "1"], named["pipar", "1"]
    assert plus["seconds"]["0.75"] == {"seconds": 100.0, "epochs": 40.0}
    assert plus["seconds"]["0.8"] == {"seconds": 200.0, "epochs": 80.0}
    assert pipar["seconds"]["0.75"] == {"seconds": 20 * 50.0, "epochs": 40.0}
    assert pipar["seconds"]["0.8"] == {"seconds": 80 * 50.0, "epochs": 80.0}
    assert named["oafl", "1/12"]["runs"] == 0
    near, far = verdicts(rows, (0.75, 0.80))
    assert near["ratios"] == {"0.75": 1.0, "0.8": 1.0}
    assert far["ratios"] == {"0.75": 0.1, "0.8": 0.05}


def test_a_target_that_was_not_reached_is_nobodys_time() -> None:
    found = [replace(entry, epochs=40.0) for entry in planned() if entry.epochs == 40.0]
    rows = list(rows_of(found, Finished(found), (0.80,)))
    assert all(row["seconds"] == {} for row in rows)
    assert verdicts(rows, (0.80,))[0]["ratios"] == {"0.8": None}


@pytest.mark.slow
def test_a_cell_is_chosen_trained_and_not_trained_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [str(ROOT / "recipes/paper/digits.toml"), "--out", str(tmp_path), "--epochs", "1"]
    command += ["--targets", "0.2", "--commit", "abc"]
    grid = Grid((1.0,), (5.0,), (0.0,), (3.0,))
    assert main(command, grid) == 0
    record = json.loads((tmp_path / "digits.json").read_text())
    assert record["left"] == 0
    assert [row["runs"] for row in record["rows"]] == [1, 1, 1]
    assert "| cell | fedoptima_plus over the best, 0.2 |" in (tmp_path / "digits.md").read_text()
    capfd.readouterr()
    assert main([*command, "--show"], grid) == 0
    assert "3 of 3 runs are finished" in capfd.readouterr().out
    assert json.loads((tmp_path / "digits.json").read_text())["rows"] == record["rows"]
