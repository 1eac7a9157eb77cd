"""What coding costs in accuracy: the same runs in float32 and coded, at equal server samples.

    python -m tools.codec_accuracy --device cuda --data DIR [RECIPE] [--epochs 60] [--seeds 5]
    python -m tools.codec_accuracy --keys codec,gradient_codec --method splitfed ...

Fewer bytes let more batches through a slow link, and what that gains would hide what the coding
costs. So the links and the server of the recipe's fleet are made so fast here that every batch gets
through, and the cut is that of the recipe's own fleet in float32: the runs of a seed train on the
same number of samples, on both sides, and differ in the coding alone. Writes
results/codecs/<recipe>_<method>.json after every run and says the mean difference with its
95 % interval (Student's t over paired seeds). Exits with 1 if the mean is below -0.5 points.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import fedoptima
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.experiments.setup import prepare
from fedoptima.experiments.simulated_run import run_experiment
from tools.records import ROOT, origin, save

RECIPE = ROOT / "recipes" / "testbed_a_vgg5_cifar10.toml"
FAST_LINK, FAST_SERVER = 1e6, 1e6  # Mbit/s and GFLOP/s: nothing waits for them
LEAST_POINTS = -0.5
# Student's t for 95 %, by degrees of freedom.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160)


def unlimited(table: dict[str, Any]) -> dict[str, Any]:
    """The recipe's fleet with links and a server that hold nothing up, cut where it would be."""
    experiment = prepare(validate(Recipe, table, "experiment"), dry=True)
    devices = [
        {"name": name, "gflops": spec.flops_per_second / 1e9, "mbps": FAST_LINK}
        for name, spec in experiment.fleet.devices.items()
    ]
    fleet = {"server": {"gflops": FAST_SERVER}, "devices": devices}
    plan = experiment.plan()
    split = {"split": {"at": plan.split}} if plan.server_blocks else {}
    return {**table, "fleet": fleet, **split}


def run(table: dict[str, Any], seed: int, codec: str, keys: Sequence[str]) -> dict[str, Any]:
    method = table["method"] | dict.fromkeys(keys, codec)
    experiment = prepare(validate(Recipe, table | {"seed": seed, "method": method}, "experiment"))
    result = run_experiment(experiment)
    last = result.curve[-1]
    return {
        "seed": seed,
        "codec": codec,
        "accuracy": result.accuracy,
        "best_accuracy": result.best_accuracy,
        "epochs": round(last.epochs, 2),
        "server_samples": last.server_samples,
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
    }


def differences(runs: Sequence[dict[str, Any]], codec: str, figure: str) -> list[float]:
    """In percentage points, coded minus float32, for each seed that has both."""
    of = {(one["seed"], one["codec"]): one for one in runs}
    seeds = [seed for seed, each in of if each == codec and (seed, "float32") in of]
    return [100 * (of[s, codec][figure] - of[s, "float32"][figure]) for s in seeds]


def interval(values: Sequence[float]) -> dict[str, float]:
    """The mean, and the ends of its 95 % interval if there are several values."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return {"mean": mean}
    half = T[min(len(values) - 1, len(T)) - 1] * statistics.stdev(values) / sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def summary(runs: Sequence[dict[str, Any]], codec: str) -> dict[str, dict[str, float]]:
    found = {f: differences(runs, codec, f) for f in ("accuracy", "best_accuracy")}
    return {figure: interval(values) for figure, values in found.items() if values}


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe", type=Path, nargs="?", default=RECIPE)
    parser.add_argument("--method", help="another than the recipe's")
    parser.add_argument("--codecs", default="int8", help="to be compared with float32")
    parser.add_argument("--keys", default="codec", help="of the method, set to the codec")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", help="folder of the data sets")
    parser.add_argument("--epochs", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--commit", help="where git cannot tell")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "codecs")
    asked = parser.parse_args(arguments)
    table = fedoptima.load_recipe(asked.recipe).model_dump(exclude_unset=True)
    table |= {"device": asked.device, "stop": {"epochs": asked.epochs}}
    if asked.data:
        table["data"] |= {"directory": asked.data}
    if asked.method:
        table["method"] = {"name": asked.method}
    keys, codecs = asked.keys.split(","), asked.codecs.split(",")
    table = unlimited(table)
    name = f"{asked.recipe.stem}_{table['method']['name']}"
    record = origin("tools.codec_accuracy", arguments, asked.device, asked.commit)
    runs: list[dict[str, Any]] = []
    file = asked.out / f"{name}.json"
    for seed in range(1, asked.seeds + 1):
        for codec in ("float32", *codecs):
            runs.append(run(table, seed, codec, keys))
            points = {codec: summary(runs, codec) for codec in codecs}
            news = f"seed {seed}, {codec}: {runs[-1]['accuracy']:.2%}"
            save(record | {"keys": keys, "points": points, "runs": runs}, file, news)
    for codec, figures in points.items():
        for figure, found in figures.items():
            said = ", ".join(f"{what} {value:+.2f}" for what, value in found.items())
            print(f"{codec} minus float32, {figure}, in points: {said}")
    return 1 if min(found["accuracy"]["mean"] for found in points.values()) < LEAST_POINTS else 0


if __name__ == "__main__":
    sys.exit(main())
