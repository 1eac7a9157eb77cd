"""What `method.robust` adds to a server's engine: to its merges, and to its training steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from fedoptima.core.robust import RobustBarrier
from fedoptima.core.types import NodeId
from fedoptima.engine.learner import Learner
from fedoptima.engine.payloads import Tensors
from fedoptima.engine.robust import RobustMerging, Update
from fedoptima.engine.step_guard import StepGuard
from fedoptima.models.activation import tensors_of

Parts = list[tuple[float, Mapping[str, Tensor]]]


class Robustness:
    def __init__(self, kind: RobustBarrier) -> None:
        self._kind = kind
        self._sides: list[RobustMerging] = []  # the device side, then the server side
        self._steps = StepGuard()
        # Devices whose last update was refused: their batches do not train the server side.
        self._suspects: list[NodeId] = []

    def watch(self, parameters: Collection[str], tensors: Mapping[str, Tensor]) -> None:
        """Add a side of the model."""
        self._sides.append(RobustMerging(self._kind, parameters, tensors))

    def select(self, sides: Sequence[Sequence[Update]]) -> tuple[dict[int, str], list[Parts]]:
        """The updates that are refused, by number, and what is summed up on each side instead."""
        with torch.no_grad():  # copies on the server are the weights that train
            return self._select(sides)

    def _select(self, sides: Sequence[Sequence[Update]]) -> tuple[dict[int, str], list[Parts]]:
        refused: dict[int, str] = {}
        for robust, updates in zip(self._sides, sides, strict=False):
            robust.see(updates)
            refused = robust.refusals(updates) | refused
        for number, update in enumerate(sides[0]):
            self._suspects = [device for device in self._suspects if device != update.device]
            if number in refused:
                self._suspects.append(update.device)
        chosen: list[Parts] = []
        for robust, updates in zip(self._sides, sides, strict=False):
            accepted = [u for number, u in enumerate(updates) if number not in refused]
            chosen.append(robust.parts(accepted) if accepted else [])
        return refused, chosen

    def limit(self, device: NodeId, learner: Learner, activation: object) -> None:
        """Before the server's step: clip the gradient of one device's batch, or leave it out."""
        if self._kind == "none":
            return
        entering = [t.detach() for t in tensors_of(activation) if t.is_floating_point()]
        odd = self._steps.limit(device, entering, learner.gradients())
        if self._kind == "refuse":
            learner.leave_out(torch.ones_like(odd) if device in self._suspects else odd)

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, object], Tensors]:
        state: dict[str, object] = {"suspects": self._suspects}
        tensors: Tensors = {}
        for name, part in self._named():
            state[name], own = part.save()
            tensors |= {f"{name}.{key}": tensor for key, tensor in own.items()}
        return state, tensors

    def restore(self, state: Mapping[str, object], tensors: Tensors) -> None:
        self._suspects = list(cast(list[NodeId], state["suspects"]))
        for name, part in self._named():
            own = {
                key.removeprefix(f"{name}."): tensor
                for key, tensor in tensors.items()
                if key.startswith(f"{name}.")
            }
            part.restore(cast(list[NodeId], state[name]), own)

    def _named(self) -> list[tuple[str, RobustMerging | StepGuard]]:
        sides = [(f"side{number}", side) for number, side in enumerate(self._sides)]
        return [*sides, ("steps", self._steps)]
