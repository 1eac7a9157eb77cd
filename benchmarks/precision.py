"""Accuracy beside speed: CIFAR-10 in float32, TF32 and bfloat16 (`training.precision`).

    python -m benchmarks.precision --device cuda [--data DIR] [--epochs 20] [--seeds 3]

The same recipe, seeds and samples in each format, one after the other within every seed, so that a
machine that is busy slows all of them. A format that the machine does not have is left out, with
the reason.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any, get_args

import fedoptima
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.config.training import Precision
from fedoptima.experiments.setup import prepare
from fedoptima.experiments.simulated_run import run_experiment

RECIPE = Path(__file__).parents[1] / "recipes" / "testbed_a_vgg5_cifar10.toml"


def run(table: dict[str, Any], precision: str) -> tuple[float, float]:
    """Final accuracy, and wall-clock seconds of the run after its data are loaded."""
    changed = table | {"training": table["training"] | {"precision": precision}}
    experiment = prepare(validate(Recipe, changed, "benchmark"))
    start = time.perf_counter()
    result = run_experiment(experiment)
    return result.accuracy or 0.0, time.perf_counter() - start


def measure(
    recipe: Path, device: str, *, epochs: float, seeds: int, data: str | None = None
) -> dict[str, object]:
    table = fedoptima.load_recipe(recipe).model_dump(exclude_unset=True)
    table |= {"device": device, "stop": {"epochs": epochs}}
    if data is not None:
        table["data"] |= {"directory": data}
    figures: dict[str, list[tuple[float, float]]] = {}
    left_out: dict[str, str] = {}
    run(table | {"stop": {"epochs": min(1.0, epochs)}}, "float32")  # libraries load, clocks rise
    for seed in range(1, seeds + 1):
        for precision in get_args(Precision):
            try:
                found = run(table | {"seed": seed}, precision)
            except fedoptima.ConfigError as error:
                left_out[precision] = str(error)
            else:
                figures.setdefault(precision, []).append(found)
    usual = [seconds for _, seconds in figures["float32"]]
    return {
        "what": f"{recipe.stem}, {epochs:g} epochs on {device}, seeds 1 to {seeds}",
        "precisions": {
            precision: {
                "accuracy": statistics.mean(accuracy for accuracy, _ in found),
                "accuracies": [accuracy for accuracy, _ in found],
                "seconds": [seconds for _, seconds in found],
                "ratio": statistics.median(
                    seconds / floor for (_, seconds), floor in zip(found, usual, strict=True)
                ),
            }
            for precision, found in figures.items()
        },
        "left out": left_out,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--data", help="folder of the data sets (or FEDOPTIMA_DATA)")
    parser.add_argument("--epochs", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    found: Any = measure(
        asked.recipe, asked.device, epochs=asked.epochs, seeds=asked.seeds, data=asked.data
    )
    print(found["what"])
    print("| precision | accuracy | of each seed | seconds | time against float32 |")
    print("|---|---|---|---|---|")
    for precision, figures in found["precisions"].items():
        single = ", ".join(f"{accuracy:.2%}" for accuracy in figures["accuracies"])
        seconds = ", ".join(f"{value:.1f}" for value in figures["seconds"])
        accuracy, ratio = f"{figures['accuracy']:.2%}", f"{figures['ratio']:.2f}"
        print(f"| {precision} | {accuracy} | {single} | {seconds} | {ratio} |")
    for precision, why in found["left out"].items():
        print(f"{precision} left out: {why}")


if __name__ == "__main__":
    main()
