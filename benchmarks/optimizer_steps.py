"""What an optimiser's step costs on one CPU thread: ours against torch's own in its default form.

Of whole models, each tensor with a gradient; CPU time, in turn, the quickest of each. The ratio is
the largest of all.

python -m benchmarks.run optimizer_steps
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedoptima.config.training import OptimizerConfig
from fedoptima.engine.optimizer import build_optimizer, plain_step
from fedoptima.models.transformer import transformer6
from fedoptima.models.vgg5 import vgg5

TURNS = 15
MODELS: dict[str, Callable[[], nn.Module]] = {
    "VGG-5": vgg5,
    "Transformer-6, 20,000 words": lambda: transformer6(vocabulary=20_000, length=64, classes=2),
}
OPTIMIZERS = ("sgd", "adam", "adamw")


def measure() -> dict[str, object]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = {
            f"{name}, {model}": _pair(name, make)
            for model, make in MODELS.items()
            for name in OPTIMIZERS
        }
    finally:
        torch.set_num_threads(threads)
    return {
        "what": "an optimiser's step on one CPU thread against torch's own, the slowest",
        "ratio": max(ours / torchs for ours, torchs in rows.values()),
        "at most": 1.0,
        **{
            name: {"ms": 1000 * ours, "torch's ms": 1000 * torchs, "of torch's": ours / torchs}
            for name, (ours, torchs) in rows.items()
        },
    }


def _pair(name: str, make: Callable[[], nn.Module]) -> tuple[float, float]:
    steps = [_step(name, list(make().parameters()), own=own) for own in (True, False)]
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for step, taken in zip(steps, times, strict=True):
            began = time.process_time()
            step()
            taken.append(time.process_time() - began)
    ours, torchs = (min(taken[1:]) for taken in times)  # the first makes what is remembered
    return ours, torchs


def _step(name: str, parameters: list[Tensor], *, own: bool) -> Callable[[], object]:
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    if own:
        return plain_step(
            build_optimizer(OptimizerConfig.model_validate({"name": name}), parameters)
        )
    if name == "sgd":
        return torch.optim.SGD(parameters, 0.01, momentum=0.9).step
    return (torch.optim.Adam if name == "adam" else torch.optim.AdamW)(parameters, 0.01).step
