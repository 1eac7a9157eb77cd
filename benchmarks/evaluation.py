"""One evaluation: its seconds, against fixed batches and, Transformer-6's, against plain attention.

    python -m benchmarks.evaluation --device cuda [--model transformer12] [--samples 25000]

Models: transformer12 (texts of IMDB's length, half of them padding), transformer6 (of SST-2's) and
vgg5 (CIFAR-10's images). Weights and samples are noise; seconds are medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.noise import images
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset
from fedoptima.engine.workload import Workload
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import prepare_run

LENGTHS = {"transformer12": 256, "transformer6": 64}
WORDS = 10_000


def texts(samples: int, length: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, WORDS, (samples, length), dtype=torch.int32, generator=generator)
    words = torch.randint(1, length + 1, (samples, 1), generator=generator)
    ids[torch.arange(length) >= words] = 0
    data = (ids, torch.arange(samples) % 2)
    return as_dataset(data, data, name="noise")


def build(model: str, samples: int, device: str, precision: str) -> Workload:
    given = texts(samples, LENGTHS[model]) if model in LENGTHS else images(samples=10 * samples)
    recipe = {
        "device": device,
        "model": {"name": model},
        "data": {"name": "noise"},
        "training": {"precision": precision},
        "stop": {"epochs": 1.0},
    }
    return prepare_run(validate(Recipe, recipe, "benchmark"), 1, Given(dataset=given)).workload


def measure(
    model: str, samples: int, device: str, *, precision: str = "float32", rounds: int = 3
) -> dict[str, object]:
    workload = build(model, samples, device, precision)
    module = deepcopy(workload.model).to(workload.compute)
    ways: dict[str, tuple[Workload, Callable[[], AbstractContextManager[None]]]] = {
        "as it is": (workload, nullcontext),
        "200 at a time": (replace(workload, evaluation_batch=200), nullcontext),
        "500 at a time": (replace(workload, evaluation_batch=500), nullcontext),
    }
    if model == "transformer6":  # Transformer-12 has a kernel of its own
        plain = replace(workload, evaluation_batch=200)
        ways["200 at a time, plain attention"] = (plain, lambda: sdpa_kernel(SDPBackend.MATH))
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):  # the first warms up
        for way, (variant, kernels) in ways.items():
            with kernels():
                start = time.perf_counter()
                variant.evaluate([module])
                if number:
                    seconds[way].append(time.perf_counter() - start)
    return {
        "what": f"one evaluation of {model}, {samples} samples, {device}, {precision}",
        "seconds": {way: statistics.median(each) for way, each in seconds.items()},
        "single": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", choices=[*LENGTHS, "vgg5"], default="transformer12")
    parser.add_argument("--samples", type=int, default=25_000)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    found = measure(
        asked.model, asked.samples, asked.device, precision=asked.precision, rounds=asked.rounds
    )
    for key, value in found.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()
