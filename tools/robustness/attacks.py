"""Hostile devices: engines that train as any other and send something else.

sign_flip   the opposite of what the device has learnt, `strength` times as long
noise       normal noise, `strength` times as long as what the device has learnt; activations
            get noise of `strength` times their spread
label_flip  the device trains on wrong labels (class c is said to be the last but c)
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedoptima.config.schema import Recipe
from fedoptima.core.jobs import ExportModel, Forward, Job
from fedoptima.core.machine import Outcome
from fedoptima.core.seeding import derive
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.data.loader import Loader
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.payloads import ACTIVATIONS, Tensors, pack, unpack
from fedoptima.engine.workload import Workload
from fedoptima.experiments.device_engines import BuildEngine, device_engine, device_loader

STRENGTH = {"none": 0.0, "sign_flip": 3.0, "noise": 10.0, "label_flip": 1.0}


class HostileEngine(DeviceEngine):
    def __init__(
        self, workload: Workload, node: NodeId, loader: Loader, attack: str, strength: float
    ) -> None:
        super().__init__(workload, node, loader, deferred=True)
        self._attack = attack
        self._strength = strength
        self._began: Tensors = {}  # the model of this round

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        outcome = super().execute(job, result)
        if self._attack == "label_flip":
            return outcome
        match job:
            case ExportModel(delta):
                poisoned = self._poison(unpack(outcome.result), result, delta)
            case Forward() if self._attack == "noise":
                poisoned = self._drown(unpack(outcome.result), result)
            case _:
                return outcome
        return replace(outcome, result=pack(result, poisoned))

    def _load(self, tensors: Tensors, progress: float) -> None:
        super()._load(tensors, progress)
        self._began = tensors

    def _poison(self, tensors: Tensors, result: PayloadId, delta: bool) -> Tensors:
        generator = torch.Generator().manual_seed(derive(0, self._node, str(result)))
        parameters = self._learning().parameter_names()
        poisoned: Tensors = {}
        for name, tensor in tensors.items():
            if not tensor.is_floating_point():
                poisoned[name] = tensor
                continue
            base = torch.zeros_like(tensor) if delta and name in parameters else self._began[name]
            change = tensor - base
            if self._attack == "sign_flip":
                change = change * -self._strength
            else:
                noise = torch.randn(tensor.shape, generator=generator).to(tensor.device)
                length = change.norm() / noise.norm().clamp_min(1e-30)
                change = noise * (length * self._strength)
            value = base + change
            # A negative variance would be refused at once.
            poisoned[name] = value.clamp_min(0) if name.endswith("running_var") else value
        return poisoned

    def _drown(self, tensors: Tensors, result: PayloadId) -> Tensors:
        generator = torch.Generator().manual_seed(derive(0, self._node, str(result)))

        def noisy(tensor: Tensor) -> Tensor:
            noise = torch.randn(tensor.shape, generator=generator).to(tensor.device)
            return tensor + noise * (tensor.std() * self._strength)

        return {
            name: noisy(tensor)
            if name.startswith(ACTIVATIONS) and tensor.is_floating_point()
            else tensor
            for name, tensor in tensors.items()
        }


class WrongLabels(Loader):
    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        inputs, labels = super().batch(step)
        return inputs, self._last - labels

    @cached_property
    def _last(self) -> int:
        return int(self._split.labels.max())


def engines_with(hostile: frozenset[str], attack: str, strength: float) -> BuildEngine:
    """Builds the engines of a fleet in which ``hostile`` devices attack."""

    def build(
        recipe: Recipe, workload: Workload, device: NodeId, rows: NDArray[np.int64]
    ) -> DeviceEngine:
        if device not in hostile or attack == "none":
            return device_engine(recipe, workload, device, rows, deferred=True)
        kind = WrongLabels if attack == "label_flip" else Loader
        loader = device_loader(recipe, workload, device, rows, kind)
        return HostileEngine(workload, device, loader, attack, strength)

    return build
