"""What a device of the dense model sends."""

from __future__ import annotations

import torch
from torch import Tensor

from fedoptima.core.jobs import AuxiliaryStep, ExportModel, Forward
from fedoptima.core.messages import ActivationBatch, ModelUpdate
from fedoptima.engine.payloads import Tensors, unpack
from tests.engine.bench import Bench, payload


def update(bench: Bench, *, delta: bool = False) -> Tensors:
    """What the device would hand in after an iteration."""
    bench.at("d", Forward(0))
    bench.at("d", AuxiliaryStep(0))
    return dict(unpack(bench.at("d", ExportModel(delta)).result))


def handed_in(tensors: Tensors) -> ModelUpdate:
    return ModelUpdate(0, 7, payload(**tensors))


def batch(**changes: Tensor) -> ActivationBatch:
    tensors = {"activations.0": torch.zeros(7, 8), "labels": torch.arange(7) % 3}
    return ActivationBatch(0, payload(**{**tensors, **changes}))


def part(number: int = 1, parts: int = 2, count: int = 3, **changes: Tensor) -> ActivationBatch:
    tensors = {
        "activations.0": torch.zeros(count, 8),
        "labels": torch.zeros(count, dtype=torch.int64),
        "share": torch.tensor(3 / 7),
    }
    return ActivationBatch(0, payload(**{**tensors, **changes}), number, parts)
