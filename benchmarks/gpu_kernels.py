"""Which kernels simulated FedOptima runs on a GPU, how often for a batch, and for how long.

    python -m benchmarks.gpu_kernels recipes/testbed_a_transformer6_sst2.toml [--epochs 0.5]

A step of a small network is hundreds of kernels of a few microseconds each. A GPU starts only so
many in a second, so several runs side by side are no faster than one once that is what limits them:
then fewer kernels help, and faster ones do not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_epoch import of_recipe
from fedoptima.experiments.simulated_run import run_experiment


def measure(recipe: Path, device: str, epochs: float, most: int) -> list[str]:
    experiment = of_recipe(recipe, device, epochs)
    on_gpu = torch.device(device).type == "cuda"
    kind = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    run_experiment(of_recipe(recipe, device, epochs))  # what is loaded and compiled only once
    with profile(activities=[kind]) as profiled:
        result = run_experiment(experiment)
    batches = result.device_samples / experiment.recipe.training.batch_size
    found = [
        (event.self_device_time_total if on_gpu else event.self_cpu_time_total, event)
        for event in profiled.key_averages()
    ]
    found.sort(key=lambda one: -one[0])
    total, count = sum(spent for spent, _ in found), sum(event.count for _, event in found)
    lines = [
        f"{batches:.0f} batches of devices, {result.server_samples / result.device_samples:.0%} of "
        "the samples on the server",
        f"for a batch: {count / batches:.0f} kernels, {total / batches:.0f} microseconds in all",
    ]
    for spent, event in found[:most]:
        share, each = spent / total, spent / event.count
        often = event.count / batches
        lines.append(f"{share:6.1%} {often:7.1f} x {each:7.1f} us  {event.key[:90]}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=float, default=0.5)
    parser.add_argument("--most", type=int, default=25, help="kernels to name")
    asked = parser.parse_args()
    print("\n".join(measure(asked.recipe, asked.device, asked.epochs, asked.most)))


if __name__ == "__main__":
    main()
