"""What a run learns with: by it, a run that goes on finds out that it was given something else.

Not a checksum of the bytes: on another machine columns that are standardised differ in their last
bits. Means of the numbers tell data apart, one of them by where each sample is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Samples, Split
from fedoptima.engine.workload import Workload
from fedoptima.models.activation import tensors_of

Material = Mapping[str, Mapping[str, Any]]

_ROWS = 1000  # that are looked at, evenly spaced
_NUMBERS = 2**22  # at most, of these rows
_CLOSE = 1e-4  # of a mean number's size
_AGAIN = "; give the same again, or start a new run"


def material_of(workload: Workload) -> dict[str, dict[str, Any]]:
    """In plain values."""
    dataset = workload.dataset
    return {
        "model": _model(workload.model),
        "train": _samples(dataset.train),
        "test": _samples(dataset.test),
    }


def check_same(recorded: Material, now: Material, data: str) -> None:
    """Raise ConfigError if a run began with something else. ``data``: the recipe's name for it."""
    if not recorded or not now:  # of an earlier version, or dry
        return
    if recorded["model"] != now["model"]:
        raise ConfigError(
            f"the model has other layers than the one that this run began with{_AGAIN}"
        )
    for part, called in (("train", "training"), ("test", "test")):
        found = _difference(recorded[part], now[part], ordered=part == "train")
        if found:
            given = f"{part}=..." if data == "custom" else f"data.name = {data!r}"
            raise ConfigError(
                f"{given}: the {called} data are not those that this run began with "
                f"({found}){_AGAIN}"
            )


def _difference(before: Mapping[str, Any], now: Mapping[str, Any], *, ordered: bool) -> str:
    if before["samples"] != now["samples"]:
        return f"{before['samples']:,} samples then, {now['samples']:,} now"
    if before["forms"] != now["forms"]:
        return f"{', '.join(before['forms'])} then, {', '.join(now['forms'])} now"
    for name, old, new in zip(before["forms"], before["means"], now["means"], strict=True):
        size = max(old["size"], new["size"])
        if not _close(old["mean"], new["mean"], size) or not _close(old["size"], new["size"], size):
            return f"other values in {name}"
        if ordered and not _close(old["placed"], new["placed"], size):
            return f"other values in {name}, or the same in another order"
    return ""


def _close(old: float, new: float, size: float) -> bool:
    return math.isclose(old, new, rel_tol=0.0, abs_tol=_CLOSE * size)


def _model(model: nn.Module) -> dict[str, Any]:
    layers = [f"{name}: {type(module).__name__}" for name, module in model.named_modules()]
    tensors = [f"{name}: {tuple(t.shape)}" for name, t in model.state_dict().items()]
    text = "\n".join((*layers, *tensors))
    return {"layers": len(layers), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _samples(samples: Samples) -> dict[str, Any]:
    """Of samples that are drawn when they are used, perhaps at random, the labels alone."""
    inputs = tensors_of(samples.inputs) if isinstance(samples, Split) else ()
    named = {f"input {number}": tensor for number, tensor in enumerate(inputs, start=1)}
    named["labels"] = samples.labels
    return {
        "samples": len(samples),
        "forms": [_form(name, tensor) for name, tensor in named.items()],
        "means": [_means(tensor) for tensor in named.values()],
    }


def _form(name: str, tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{name}: {dtype} {tuple(tensor.shape[1:])}"


@torch.no_grad()
def _means(tensor: Tensor) -> dict[str, float]:
    count, width = len(tensor), math.prod(tensor.shape[1:])
    if not count or not width:
        return {"mean": 0.0, "size": 0.0, "placed": 0.0}
    rows = max(1, min(count, _ROWS, _NUMBERS // width))
    places = torch.linspace(0, count - 1, rows, dtype=torch.float64).long()
    numbers = tensor[places.to(tensor.device)].cpu().reshape(rows, width).double().nan_to_num()
    waves = torch.outer(
        torch.cos(torch.arange(rows, dtype=torch.float64)),
        torch.cos(torch.arange(width, dtype=torch.float64)),
    )
    means = (numbers.mean(), numbers.abs().mean(), (numbers * waves).mean())
    mean, size, placed = (cast(float, value.item()) for value in means)
    return {"mean": mean, "size": size, "placed": placed}
