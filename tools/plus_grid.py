"""Where FedOptima+ brings most fresh samples through the whole network: dry runs, no training.

    python -m tools.plus_grid recipes/testbed_a_vgg5_cifar10.toml \\
        recipes/testbed_a_transformer6_sst2.toml --jobs 14

The grid of tools.sensitivity, with FedOptima+ as it plans itself for every cell, against every
other method, each as it is and with what it sends coded in int8. Reused samples do not count, and
devices of FedOptima+ train on at least a quarter of their batches (its `least_training`). Writes
results/fedoptima_plus/<recipe>.json (a line per cell; what is there is not measured again), a map
and words.md, which names the cells where another method is first. Exits with 1 where FedOptima+ is
first in less than 95 % of a grid. Needs no data.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedoptima.comparison.regions import number, summary
from fedoptima.comparison.sensitivity import Grid, Sensitivity, be_quiet, measure
from fedoptima.config.load import load_recipe
from fedoptima.methods.fedoptima_plus import NAME as PLUS
from fedoptima.methods.registry import COMPARED, METHODS, options_of
from fedoptima.reporting.heat_map import heat_map
from tools.records import ROOT, origin
from tools.sensitivity import grid_of

LEAST = 0.95  # of the cells
CODED = "int8"
_CODECS = ("codec", "gradient_codec", "update_codec")

Choice = dict[str, tuple[str, Mapping[str, object]]]


def methods(names: Sequence[str] = COMPARED) -> Choice:
    """FedOptima+, and the others: as they are and coded; PiPar also with a split of its own."""
    chosen: Choice = {PLUS: (PLUS, {})}
    for name in names:
        coded = {key: CODED for key in _CODECS if key in options_of(METHODS[name])}
        for own in ({}, {"own_split": True}) if name == "pipar" else ({},):
            label = f"{name}, own split" if own else name
            chosen[label] = (name, own)
            chosen[f"{label}, {CODED}"] = (name, {**own, **coded})
    return chosen


def share_first(found: Sensitivity) -> float:
    return sum(found.winner(cell) == PLUS for cell in found.times) / len(found.times)


def shared(found: Sensitivity) -> list[str]:
    """Cells where another method is as fast, in the digits that are stored."""
    told = []
    for cell in found.times:
        if found.winner(cell) == PLUS and found.lead(cell) == 1.0:
            own = found.times[cell][PLUS]
            equal = [m for m, t in found.times[cell].items() if m != PLUS and t == own]
            place = f"devices x {number(cell.devices)}, {cell.mbps:g} Mbps"
            place += f", {cell.latency_ms:g} ms, {cell.server_gflops:g} GFLOP/s"
            told.append(f"{place}: {', '.join(equal)}")
    return told


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
        whole, *where = summary(found)
        leads = sorted(lead for cell in found.times if (lead := found.lead(cell)))
        middle = leads[len(leads) // 2]
        text += ["", f"## {found.name}", "", f"![{found.name}]({file.stem}.svg)", "", whole, ""]
        text += [
            f"The next best method takes {leads[0]:.2f} to {leads[-1]:.2f} times as long, "
            f"{middle:.2f} times in the middle."
        ]
        text += ["", *(f"- {sentence}" for sentence in where)]
        if equal := shared(found):
            text += ["", f"In {len(equal)} of the cells it is first together with another:", ""]
            text += [f"- {place}" for place in equal]
        text += ["", ", ".join(f"{key}: {value}" for key, value in found.origin.items())]
    return "\n".join([*text, ""])


def main(arguments: Sequence[str] | None = None, grid: Grid | None = None) -> int:
    said = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(said)
    about = origin("tools.plus_grid", said, "cpu", given.commit)
    be_quiet()
    enough = True
    for path in given.recipes:
        recipe, began = load_recipe(path), time.monotonic()

        def news(done: int, total: int, name: str = recipe.name, since: float = began) -> None:
            if done % 30 == 0 or done == total:
                print(f"{name}: {done} of {total}, {time.monotonic() - since:.0f} s", flush=True)

        file = given.out / f"{path.stem}.json"
        measure(
            recipe, grid or grid_of(recipe, corners=given.corners), methods(given.methods),
            file=file, origin=about, jobs=given.jobs, news=news, reference=PLUS,
        )  # fmt: skip
        found = Sensitivity.from_json(file.read_text(encoding="utf-8"))  # in the digits that count
        file.with_suffix(".svg").write_text(heat_map(found), encoding="utf-8")
        print(f"{recipe.name}: {PLUS} is first in {share_first(found):.1%} of the cells")
        enough &= share_first(found) >= LEAST
    (given.out / "words.md").write_text(words(given.out), encoding="utf-8")
    return 0 if enough else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Is FedOptima+ the fastest, and where not?")
    parser.add_argument("recipes", nargs="+", type=Path)
    parser.add_argument("--corners", action="store_true", help="only the ends of every axis")
    parser.add_argument("--methods", nargs="+", default=list(COMPARED), choices=list(COMPARED))
    parser.add_argument("--jobs", type=int, help="cells at a time; as many as there are cores")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "fedoptima_plus")
    parser.add_argument("--commit", help="to record, where there is no Git")
    return parser


if __name__ == "__main__":
    sys.exit(main())
