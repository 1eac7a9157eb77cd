"""FedOptima+ against the two strongest baselines of each cell, trained: who is first at a target.

    python -m tools.cells recipes/paper/a_image.toml --device cuda --jobs 12 --out DIR
    python -m tools.cells recipes/paper/a_text.toml --device cuda --jobs 12 --out DIR

A cell is the recipe's fleet with other device speeds and links: nine for images, three for text.
Dry runs choose the two baselines that bring most useful samples through the network there, each as
it is or with what it sends coded in int8, whichever is faster, and the form of FedOptima+. Every
method has the recipe's own settings for it (FedOptima+: FedOptima's, unless it has some) and is
trained with a schedule of its own length for each of --epochs; the best of these counts.

FL, SplitFed and PiPar learn the same on every fleet, so they are trained once, on the recipe's own,
and shown with the time of a sample in each cell (docs/fair-comparisons.md); coded, once for each
cut that cells choose. PiPar is trained with four parts of a batch, and shown at the pace of its
authors' number.

--devices leaves cells out; --set changes the recipe, methods.fedoptima_plus.reuse=false the form of
FedOptima+ (methods.fedoptima.reuse where the recipe has no table for it). What is finished is never
run again, also after a kill: call the same command again.
--limit-seconds stops it earlier, --merge takes over finished runs of another folder, --show runs
nothing. Writes DIR/<recipe>.json and DIR/<recipe>.md, also of what is there so far. What
DIR/<recipe>_choice.json has is not chosen again: for another --set, give another DIR.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from fedoptima.comparison.many_runs import Execution
from fedoptima.comparison.sensitivity import Grid
from fedoptima.config.load import load_recipe
from fedoptima.config.schema import Recipe
from fedoptima.display.comparison_progress import pool_view
from fedoptima.display.interrupt import Interrupt
from fedoptima.experiments.run_directory import RunDirectory, make_folder
from fedoptima.reproduction.records import Records, counted_origins
from fedoptima.reproduction.work import Session, work
from fedoptima.trace.run_folder import write_whole
from tools.cells.choice import Cell, Plain, choices, entries
from tools.cells.table import as_json, markdown, rows_of, verdicts

IMAGES = Grid((1.0, 1 / 6, 1 / 12), (25.0, 50.0, 400.0), (0.0,), (150.0,))
TEXT = Grid((1.0, 1 / 6, 1 / 12), (50.0,), (0.0,), (150.0,))
TEXTS = ("sst2", "imdb")
TARGETS = {"images": (0.75, 0.80), "text": (0.85, 0.90)}


def main(arguments: Sequence[str] | None = None, grid: Grid | None = None) -> int:
    said = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(said)
    changes = [f"device={json.dumps(given.device)}", *given.set]
    changes += [f"data.directory={json.dumps(given.data)}"] if given.data else []
    recipe = load_recipe(given.recipe, changes)
    text = recipe.data.name in TEXTS
    targets = given.targets or TARGETS["text" if text else "images"]
    grid = grid or cells_of(recipe, given.devices)
    seeds = range(recipe.seed, recipe.seed + given.seeds)
    deadline = time.monotonic() + (0.0 if given.show else given.limit_seconds)
    records = Records(given.out)
    for other in given.merge:
        print(f"{records.merge(other)} runs taken over from {other}")
    make_folder(given.out)
    with RunDirectory(given.out).taken(), Interrupt() as stopped:
        file = given.out / f"{given.recipe.stem}_choice.json"
        chosen = choices(recipe, grid, file, given.jobs, deadline)
        found = list(entries(recipe, chosen, epochs=given.epochs, seeds=seeds))
        queue = list({entry.run.id: entry.run for entry in found}.values())
        with pool_view(f"{len(queue)} runs in {given.out}", quiet=given.show) as view:
            execution = Execution(
                given.jobs,
                observer=view.show,
                interrupted=lambda: stopped() or time.monotonic() >= deadline,
            )
            command = shlex.join(["python", "-m", "tools.cells", *said])
            session = Session(execution, command, given.commit or "")
            outcome = work(queue, records, session)
    for line in outcome.failed:
        print(line, file=sys.stderr)
    if queue:
        rows = list(rows_of(found, records, targets))
        ready = [record for run in queue if (record := records.get(run.id)) is not None]
        made = [{"runs": count, **vars(each)} for each, count in counted_origins(ready)]
        record: Plain = {"recipe": recipe.name, "made": made}
        record |= {"seeds": list(seeds), "epochs": given.epochs, "targets": list(targets)}
        record |= {"left": outcome.left, "rows": rows, "verdicts": verdicts(rows, targets)}
        record["choice"] = {Cell(recipe, c).name: choice for c, choice in chosen.items()}
        out = given.out / given.recipe.stem
        write_whole(out.with_suffix(".json"), as_json(record))
        write_whole(out.with_suffix(".md"), markdown(record, targets))
    print(f"{len(queue) - outcome.left} of {len(queue)} runs are finished; results in {given.out}")
    return 1 if outcome.failed else 0


def cells_of(recipe: Recipe, devices: Sequence[Fraction] | None = None) -> Grid:
    """``devices``: only those with devices of these speeds, relative to the recipe's."""
    grid = TEXT if recipe.data.name in TEXTS else IMAGES
    return replace(grid, devices=tuple(map(float, devices))) if devices else grid


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.cells",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--epochs", type=float, nargs="+", default=[40.0, 80.0], help="lengths")
    parser.add_argument("--devices", type=Fraction, nargs="+", help="only these speeds: 1 1/6")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--targets", type=float, nargs="+", help="accuracies, 0.8 for 80 %%")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"))
    parser.add_argument("--merge", type=Path, action="append", default=[], metavar="DIR")
    parser.add_argument("--show", action="store_true", help="run nothing: write what is there")
    parser.add_argument("--commit", help="where git cannot tell")
    return parser


if __name__ == "__main__":
    sys.exit(main())
