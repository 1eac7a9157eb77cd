"""How far plain training on one machine gets: the model and data of a recipe, no devices, no split.

    python -m tools.centralised recipes/testbed_a_transformer6_sst2.toml --device cuda --lanes 12

Trains every configuration of the recipe's grid (tools/centralised/grids) on nine tenths of the
training data and compares them on the tenth held out, by the accuracy after the last epoch. Then
trains the best one on all training data with several seeds; only these meet the test data. Writes
results/centralised/<recipe>.json after every training; what is recorded there is not trained again.

A ceiling is the best of at least 12 configurations with no fewer epochs than the methods get, with
three seeds: with --least-epochs, shorter trainings are not chosen from, and the file says what is
missing. --epochs gives every configuration of the grid as many.

Lanes share a GPU well only where NVIDIA's multi-process service runs (nvidia-cuda-mps-control -d).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedoptima.config.load import load_recipe
from tools.centralised.jobs import HELD_OUT, Job, train
from tools.centralised.settings import Settings, read_grid
from tools.lanes import pool_of, results_of
from tools.records import ROOT, Record, origin, save

CONFIGURATIONS, SEEDS = 12, 3  # a ceiling is the best of so many, run so often


def main(arguments: Sequence[str] | None = None) -> None:
    said = sys.argv[1:] if arguments is None else arguments
    given = _parser().parse_args(said)
    grid = read_grid(given.grid or Path(__file__).parent / "grids" / f"{given.recipe.stem}.toml")
    if given.epochs:
        grid = list(dict.fromkeys(replace(one, epochs=given.epochs) for one in grid))
    deadline = time.monotonic() + 60 * given.minutes if given.minutes else float("inf")
    seed = load_recipe(given.recipe).seed
    file: Path = given.out / f"{given.recipe.stem}.json"
    record: Record = {
        **origin("tools.centralised", said, given.device, given.commit),
        "seed": seed,
        "held out": HELD_OUT,
        "configurations": [],
        "chosen": None,
        "runs": [],
    }
    if file.is_file():
        before = json.loads(file.read_text(encoding="utf-8"))
        kept = ("configurations", "chosen", "runs", "test accuracy")
        record |= {key: before[key] for key in kept if key in before}
    with pool_of(given.lanes) as pool:
        job = partial(Job, given.recipe, given.device)
        tried = [entry["settings"] for entry in record["configurations"]]
        jobs = [job(new, seed, False) for new in grid if new.told() not in tried]
        for done, result in results_of(train, jobs, pool, given.lanes, deadline):
            record["configurations"].append({"settings": done.settings.told(), **result})
            record["configurations"].sort(key=lambda entry: _place(entry["settings"], grid))
            save(record, file, f"{done.settings.told()}, held out {result['accuracy'][-1]:.2%}")

        long_enough = _at_least(given.least_epochs, record["configurations"])
        if not long_enough:
            raise SystemExit(f"{file}: no configuration of {given.least_epochs} epochs yet")
        best = max(long_enough, key=lambda entry: entry["accuracy"][-1])["settings"]
        chosen = replace(Settings(**best), epochs=given.run_epochs or best["epochs"])
        if best != record["chosen"]:
            record |= {"chosen": best, "runs": []}
            record.pop("test accuracy", None)
        record["runs"] = _at_least(given.least_epochs, record["runs"])
        ran = [run["seed"] for run in record["runs"]]
        seeds = [other for other in range(seed, seed + given.seeds) if other not in ran]
        jobs = [job(chosen, other, True) for other in seeds]
        for done, result in results_of(train, jobs, pool, given.lanes):
            record["runs"].append({"seed": done.seed, **result})
            record["test accuracy"] = summary(record["runs"])
            save(record, file, f"seed {done.seed}, test {result['accuracy'][-1]:.2%}")
        if given.least_epochs:
            record |= {"least epochs": given.least_epochs}
            record |= {"missing for a ceiling": missing(record, given.least_epochs)}
            save(record, file, f"missing for a ceiling: {record['missing for a ceiling'] or '-'}")


def missing(record: Record, epochs: int) -> list[str]:
    """Until the best configuration may be called the ceiling of methods that get ``epochs``."""
    tried = len(_at_least(epochs, record["configurations"]))
    ran = len(_at_least(epochs, record["runs"]))
    wanted = ((CONFIGURATIONS, tried, "configurations"), (SEEDS, ran, "seeds of the best"))
    return [
        f"{least - there} {what} with at least {epochs} epochs"
        for least, there, what in wanted
        if there < least
    ]


def _at_least(epochs: int, trained: Sequence[Record]) -> list[Record]:
    return [entry for entry in trained if entry["epochs"][-1] >= epochs]


def summary(runs: Sequence[Record]) -> Record:
    last = [run["accuracy"][-1] for run in runs]
    return {
        "last epoch, mean": round(statistics.fmean(last), 5),
        "last epoch, lowest and highest": [min(last), max(last)],
        "best epoch, mean": round(statistics.fmean(max(run["accuracy"]) for run in runs), 5),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.centralised",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--grid", type=Path, help="configurations to try; default: the recipe's")
    parser.add_argument("--epochs", type=int, help="of every configuration; default: the grid's")
    parser.add_argument(
        "--least-epochs", type=int, default=0, help="choose among those that had as many"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "centralised")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lanes", type=int, default=1, help="trainings side by side")
    parser.add_argument("--minutes", type=float, help="begin no configuration after so many")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of the best configuration's runs")
    parser.add_argument("--run-epochs", type=int, help="of these runs; default: as chosen")
    parser.add_argument("--commit", help="of fedoptima, where git cannot tell")
    return parser


def _place(settings: Record, grid: Sequence[Settings]) -> int:
    """In the grid; what an earlier grid had comes first."""
    return next((i for i, one in enumerate(grid) if one.told() == settings), -1)


if __name__ == "__main__":
    main()
