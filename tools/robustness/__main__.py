"""What hostile devices do to a run, and what robust merging (`method.robust`) makes of it.

    python -m tools.robustness recipes/demo_digits.toml --lanes 2
    python -m tools.robustness recipes/testbed_a_vgg5_cifar10.toml --device cuda --lanes 8

Simulates the recipe for every method, attack, option and seed; two devices, drawn by the seed, are
hostile. Writes results/robustness/<recipe>.json after every run; what is recorded there is not run
again. Lanes share a GPU well only where NVIDIA's multi-process service runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

from fedoptima.config.load import load_recipe
from fedoptima.core.errors import ConfigError
from tools.lanes import pool_of, results_of
from tools.records import ROOT, Record, origin, save
from tools.robustness.attacks import STRENGTH
from tools.robustness.runs import OPTIONS, Job, has_option, run


def main(arguments: Sequence[str] | None = None) -> None:
    said = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(said)
    deadline = time.monotonic() + 60 * given.minutes if given.minutes else float("inf")
    recipe = load_recipe(given.recipe)
    epochs = given.epochs or recipe.stop.epochs
    if epochs is None:
        raise ConfigError(f"{given.recipe}: has no stop.epochs; give --epochs")
    file: Path = given.out / f"{given.recipe.stem}.json"
    record: Record = {
        **origin("tools.robustness", said, given.device, given.commit),
        "accuracy": [],
        "runs": [],
    }
    if file.is_file():
        record["runs"] = json.loads(file.read_text(encoding="utf-8"))["runs"]
    wanted = [
        Job(
            str(given.recipe), given.device, method, attack, option, seed, epochs, given.hostile,
            STRENGTH[attack] if given.strength is None or attack == "none" else given.strength,
        )
        for seed, attack, method, option in product(
            range(recipe.seed, recipe.seed + given.seeds), given.attacks, given.methods,
            given.options,
        )
        if has_option(method, option)
    ]  # fmt: skip
    recorded = [_key(entry) for entry in record["runs"]]
    jobs = [job for job in wanted if _key(asdict(job)) not in recorded]
    with pool_of(given.lanes) as pool:
        for job, result in results_of(run, jobs, pool, given.lanes, deadline):
            settings = {key: asdict(job)[key] for key in _KEYS}
            record["runs"].append({**settings, "on": job.device, **result})
            record["runs"].sort(key=_place)
            record["accuracy"] = table(record["runs"])
            save(record, file, f"{job}: {result['accuracy']:.2%}")
    record["accuracy"] = table(record["runs"])
    for row in record["accuracy"]:
        print(row)


_KEYS = ("method", "attack", "option", "seed", "epochs", "hostile", "strength")


def _key(entry: Record) -> tuple[object, ...]:
    return tuple(entry[key] for key in _KEYS)


def _place(entry: Record) -> tuple[object, ...]:
    attacks, options = list(STRENGTH), list(OPTIONS)
    return (
        entry["method"],
        attacks.index(entry["attack"]),
        entry["strength"],
        options.index(entry["option"]),
        entry["epochs"],
        entry["seed"],
    )


def table(runs: Sequence[Record]) -> list[Record]:
    """The mean over seeds, a row for each method, attack and option."""
    rows: dict[tuple[object, ...], list[float]] = {}
    for entry in runs:
        key = tuple(entry[key] for key in _KEYS if key != "seed")
        rows.setdefault(key, []).append(entry["accuracy"])
    names = [key for key in _KEYS if key != "seed"]
    return [
        {
            **dict(zip(names, key, strict=True)),
            "seeds": len(found),
            "mean": round(statistics.fmean(found), 5),
            "lowest": min(found),
        }
        for key, found in rows.items()
    ]


def _parser() -> argparse.ArgumentParser:
    def names(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(
        prog="python -m tools.robustness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--methods", type=names, default=["fl", "fedoptima"])
    parser.add_argument("--attacks", type=names, default=list(STRENGTH), help=", ".join(STRENGTH))
    parser.add_argument("--options", type=names, default=list(OPTIONS), help=", ".join(OPTIONS))
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--hostile", type=int, default=2, help="devices that attack")
    parser.add_argument("--strength", type=float, help=f"of an attack; by default {STRENGTH}")
    parser.add_argument("--epochs", type=float, help="of each run; default: the recipe's")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "robustness")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lanes", type=int, default=1, help="runs side by side")
    parser.add_argument("--minutes", type=float, help="begin no run after so many")
    parser.add_argument("--commit", help="of fedoptima, where git cannot tell")
    return parser


if __name__ == "__main__":
    main()
