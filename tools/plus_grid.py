"""Where FedOptima+ brings most fresh samples through the whole network: dry runs, no training.

    python -m tools.plus_grid recipes/testbed_a_vgg5_cifar10.toml \\
        recipes/testbed_a_transformer6_sst2.toml --jobs 14

The grid of tools.sensitivity, with FedOptima+ as it plans itself for every cell, against every
other method, each as it is and with what it sends coded in int8. Reused samples do not count, and
devices of FedOptima+ train on at least a quarter of their batches (its `least_training`). Writes
results/fedoptima_plus/<recipe>.json (a line per cell; what is there is not measured again), a map
and words.md, which names the cells where another method is faster or as fast. Exits with 1 where
FedOptima+ alone is first in less than 95 % of a grid. Needs no data.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedoptima.comparison.dry_pace import Conditions
from fedoptima.comparison.regions import number
from fedoptima.comparison.sensitivity import Grid, Sensitivity, be_quiet, measure
from fedoptima.config.load import load_recipe
from fedoptima.methods.fedoptima_plus import NAME as PLUS
from fedoptima.methods.registry import COMPARED, METHODS, options_of
from fedoptima.reporting.heat_map import heat_map
from tools.records import ROOT, origin
from tools.sensitivity import grid_of, news_of

LEAST = 0.95  # of the cells
LEVEL = 1.005  # what differs by less is as fast
MEANINGS = {
    "behind": "Behind (in brackets: its time over the other's):",
    "level": "Level, within half a percent:",
}
CODED = "int8"
_CODECS = ("codec", "gradient_codec", "update_codec")

Choice = dict[str, tuple[str, Mapping[str, object]]]


def methods(names: Sequence[str] = COMPARED) -> Choice:
    """FedOptima+, and the others: as they are and coded; PiPar also with a split of its own."""
    chosen: Choice = {PLUS: (PLUS, {})}
    for name in names:
        coded = {key: CODED for key in _sent(name)}
        for own in ({}, {"own_split": True}) if name == "pipar" else ({},):
            label = f"{name}, own split" if own else name
            chosen[label] = (name, own)
            chosen[f"{label}, {CODED}"] = (name, {**own, **coded})
    return chosen


def _sent(name: str) -> list[str]:
    """The codecs of what a method sends: with an auxiliary network, no gradients."""
    factory = METHODS[name]
    local_loss = factory(1).program.kind == "auxiliary"
    unused = ("gradient_codec",) if local_loss else ()
    return [key for key in _CODECS if key in options_of(factory) and key not in unused]


def standing(found: Sensitivity) -> dict[str, list[Conditions]]:
    """The cells where FedOptima+ is first, where another method is as fast, and where it is behind.

    As fast is what differs by less than half a percent: a server that is always busy with fresh
    batches gives every method with the same cut the same pace.
    """
    cells: dict[str, list[Conditions]] = {"first": [], "level": [], "behind": []}
    for cell in found.times:
        lead = found.lead(cell) or 0.0
        place = "first" if lead > LEVEL else "level" if lead * LEVEL >= 1 else "behind"
        cells[place].append(cell)
    return cells


def share(found: Sensitivity, *places: str) -> float:
    cells = standing(found)
    return sum(len(cells[place]) for place in places) / len(found.times)


def told(cell: Conditions, found: Sensitivity) -> str:
    """The cell, and who is as fast or faster there."""
    own = found.times[cell][PLUS] or float("inf")
    others = ((m, t) for m, t in found.times[cell].items() if m != PLUS and t is not None)
    near = [f"{m} ({own / t:.3f})" for m, t in others if t <= own * LEVEL]
    place = f"devices x {number(cell.devices)}, {cell.mbps:g} Mbps, {cell.latency_ms:g} ms"
    return f"{place}, {cell.server_gflops:g} GFLOP/s: {', '.join(near)}"


def words(folder: Path) -> str:
    """Of all grids in the folder."""
    text = [
        "# Where FedOptima+ is first, and where it is not",
        "",
        "By fresh samples through the whole network each second, in dry runs; every other method "
        f"as it is and with what it sends coded in {CODED}. Made by `python -m tools.plus_grid`.",
    ]
    for file in sorted(folder.glob("*.json")):
        found = Sensitivity.from_json(file.read_text(encoding="utf-8"))
        leads = sorted(lead for cell in found.times if (lead := found.lead(cell)))
        cells = standing(found)
        counts = ", ".join(f"{place} in {len(there)}" for place, there in cells.items())
        text += ["", f"## {found.name}", "", f"![{found.name}]({file.stem}.svg)", ""]
        text += [
            f"Of {len(found.times)} cells {PLUS} is {counts}: first in {share(found, 'first'):.1%},"
            f" first or level in {share(found, 'first', 'level'):.1%}. The best other method takes "
            f"{leads[0]:.2f} to {leads[-1]:.2f} times as long, {leads[len(leads) // 2]:.2f} times "
            "in the middle."
        ]
        for place, meaning in MEANINGS.items():
            if cells[place]:
                text += ["", meaning, ""]
                text += [f"- {told(cell, found)}" for cell in cells[place]]
        text += ["", "\n\n".join(found.origins)]
    return "\n".join([*text, ""])


def main(arguments: Sequence[str] | None = None, grid: Grid | None = None) -> int:
    said = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(said)
    about = origin("tools.plus_grid", said, "cpu", given.commit)
    be_quiet()
    enough = True
    for path in given.recipes:
        recipe = load_recipe(path)
        file = given.out / f"{path.stem}.json"
        measure(
            recipe, grid or grid_of(recipe, corners=given.corners), methods(given.methods),
            file=file, origin=about, jobs=given.jobs, news=news_of(recipe.name), reference=PLUS,
            again=given.again,
        )  # fmt: skip
        found = Sensitivity.from_json(file.read_text(encoding="utf-8"))
        file.with_suffix(".svg").write_text(heat_map(found), encoding="utf-8")
        counts = {place: len(cells) for place, cells in standing(found).items()}
        print(f"{recipe.name}: {PLUS} is {counts}, first in {share(found, 'first'):.1%}")
        enough &= share(found, "first") >= LEAST
    (given.out / "words.md").write_text(words(given.out), encoding="utf-8")
    return 0 if enough else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Is FedOptima+ the fastest, and where not?")
    parser.add_argument("recipes", nargs="+", type=Path)
    parser.add_argument("--corners", action="store_true", help="only the ends of every axis")
    parser.add_argument("--methods", nargs="+", default=list(COMPARED), choices=list(COMPARED))
    parser.add_argument("--jobs", type=int, help="cells at a time; as many as there are cores")
    parser.add_argument(
        "--again", nargs="+", default=[], choices=list(METHODS), metavar="METHOD",
        help="forget what was measured of these; if it is interrupted, go on without this option",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "fedoptima_plus")
    parser.add_argument("--commit", help="to record, where there is no Git")
    return parser


if __name__ == "__main__":
    sys.exit(main())
