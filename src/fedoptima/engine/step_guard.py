"""The server's steps under robust merging: no batch of one device moves the server side much more
than those of the others do. Nothing is read back from a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedoptima.core.types import NodeId
from fedoptima.engine.payloads import Tensors
from fedoptima.engine.robust import ENOUGH, middle

ODD = 3.0  # times the usual size of activations, or less than a third: the batch is not used
_TINY = 1e-30  # a gradient of nothing is not to be divided by


class StepGuard:
    def __init__(self) -> None:
        # By device, of its last batch: the size (root mean square) of the activations, and the
        # norm of the gradient of the server side.
        self.latest: dict[NodeId, Tensor] = {}

    def limit(
        self, device: NodeId, activation: Sequence[Tensor], gradients: list[Tensor]
    ) -> Tensor:
        """Clip the gradients to the fleet's median; true if the batch is not to be used at all."""
        with torch.no_grad():
            size = torch.stack([t.norm() for t in activation]).norm()
            size = size / sum(t.numel() for t in activation) ** 0.5
            norm = torch.stack(torch._foreach_norm(gradients)).norm()
            own = self.latest[device] = torch.stack([size, norm])
            usual = middle(torch.stack(list(self.latest.values())))
            torch._foreach_mul_(gradients, (usual[1] / norm.clamp_min(_TINY)).clamp_max(1.0))
            odd = (own[0] > ODD * usual[0]) | (own[0] * ODD < usual[0])
            return odd if len(self.latest) >= ENOUGH else torch.zeros_like(odd)

    def save(self) -> tuple[list[NodeId], Tensors]:
        rows = {str(number): row for number, row in enumerate(self.latest.values())}
        return list(self.latest), rows

    def restore(self, devices: Sequence[NodeId], tensors: Tensors) -> None:
        self.latest = {device: tensors[str(number)] for number, device in enumerate(devices)}
