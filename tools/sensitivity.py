"""Who is fastest under which conditions, and what the scheduler changes: dry runs, no training.

    python -m tools.sensitivity recipes/testbed_a_*.toml            # the grid, resumable
    python -m tools.sensitivity recipes/testbed_*.toml --jobs 2
    python -m tools.sensitivity recipes/testbed_*.toml --scheduler  # counter against FIFO

Measures the time of a useful sample of every method for each combination of device speed, links,
latency and server speed. Writes results/sensitivity/<recipe>.json (a line per cell; what is there
is not measured again), a map as <recipe>.svg and words.md, which names every region where FedOptima
is not first. With --scheduler: results/scheduler/<recipe>.json and scheduler.md. Needs no data: the
facts of complete sets are stored with the package.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedoptima.comparison.regions import summary
from fedoptima.comparison.scheduling import EPOCHS, Ablation, ablate, as_table, settings
from fedoptima.comparison.sensitivity import (
    TESTBED_A,
    TESTBED_B,
    Grid,
    Sensitivity,
    be_quiet,
    measure,
)
from fedoptima.config.load import load_recipe
from fedoptima.config.schema import Recipe
from fedoptima.methods.registry import COMPARED, METHODS
from fedoptima.reporting.heat_map import heat_map
from tools.records import ROOT, Record, origin, save

Choice = Mapping[str, tuple[str, Mapping[str, object]]]


def methods(names: Sequence[str]) -> Choice:
    """PiPar also with a split of its own, which its authors choose together with its parts."""
    chosen: dict[str, tuple[str, Mapping[str, object]]] = {name: (name, {}) for name in names}
    if "pipar" in chosen:
        chosen["pipar, own split"] = ("pipar", {"own_split": True})
    return chosen


def grid_of(recipe: Recipe, *, corners: bool = False) -> Grid:
    preset = recipe.fleet.preset if recipe.fleet else None
    whole = TESTBED_B if preset and preset.startswith("testbed_b") else TESTBED_A
    return whole.corners if corners else whole


def news_of(name: str) -> Callable[[int, int], None]:
    """Prints now and then how many cells of a grid are done."""
    began = time.monotonic()

    def news(done: int, total: int) -> None:
        if done % 30 == 0 or done == total:
            print(f"{name}: {done} of {total}, {time.monotonic() - began:.0f} s", flush=True)

    return news


def main(arguments: Sequence[str] | None = None) -> None:
    said = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(said)
    about = origin("tools.sensitivity", said, "cpu", given.commit)
    be_quiet()
    if given.scheduler:
        out = given.out or ROOT / "results" / "scheduler"
        _ablation(given.recipes, out, about, given.epochs)
        return
    out = given.out or ROOT / "results" / "sensitivity"
    for path in given.recipes:
        recipe = load_recipe(path)
        file = out / f"{path.stem}.json"
        found = measure(
            recipe, grid_of(recipe, corners=given.corners), methods(given.methods),
            file=file, origin=about, jobs=given.jobs, news=news_of(recipe.name),
            again=given.again,
        )  # fmt: skip
        file.with_suffix(".svg").write_text(heat_map(found), encoding="utf-8")
    write_words(out)


def write_words(folder: Path) -> None:
    """Of all grids in the folder."""
    text = ["# Where FedOptima is first, and where it is not", ""]
    said = "By the time of a useful sample; made by `python -m tools.sensitivity`. Regions overlap."
    text += [said, ""]
    for file in sorted(folder.glob("*.json")):
        found = Sensitivity.from_json(file.read_text(encoding="utf-8"))
        whole, *where = summary(found)
        text += [f"## {found.name}", "", f"![{found.name}]({file.stem}.svg)", "", whole, ""]
        text += [*(f"- {sentence}" for sentence in where), ""]
        text += ["\n\n".join(found.origins), ""]
    (folder / "words.md").write_text("\n".join(text), encoding="utf-8")


def _ablation(recipes: Sequence[Path], out: Path, about: Record, epochs: float) -> None:
    text = ["# The counter scheduler against FIFO", ""]
    for path in recipes:
        recipe = load_recipe(path)
        found: list[Ablation] = []
        for setting in settings(recipe):
            found.append(ablate(recipe, setting, epochs))
            print(f"{recipe.name}: {setting.name}", flush=True)
        record = {**about, "ablations": [each.plain() for each in found]}
        save(record, out / f"{path.stem}.json", f"{len(found)} settings")
        text += [f"## {recipe.name}", "", *as_table(found), ""]
    text += [", ".join(f"{key}: {value}" for key, value in about.items()), ""]
    (out / "scheduler.md").write_text("\n".join(text), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Who is fastest under which conditions?")
    parser.add_argument("recipes", nargs="+", type=Path)
    parser.add_argument("--scheduler", action="store_true", help="counter against FIFO instead")
    parser.add_argument("--corners", action="store_true", help="only the ends of every axis")
    parser.add_argument("--methods", nargs="+", default=list(COMPARED), choices=list(METHODS))
    parser.add_argument("--epochs", type=float, default=EPOCHS, help="of --scheduler's runs")
    parser.add_argument("--jobs", type=int, help="cells at a time; as many as there are cores")
    parser.add_argument(
        "--again", nargs="+", default=[], choices=list(METHODS), metavar="METHOD",
        help="forget what was measured of these; if it is interrupted, go on without this option",
    )  # fmt: skip
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="to record, where there is no Git")
    return parser


if __name__ == "__main__":
    main()
