"""Whether a step is to be undone, and what it changes besides the weights.

Nothing is read back from a GPU, and there are few operations: each is a kernel of its own there,
and the server's steps wait for one another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedoptima.engine.payloads import Tensors

_FEW = 8  # numbers that are read one by one in less time than they are added up


class Undo:
    def __init__(self, buffers: Sequence[Tensor], compute: torch.device, *, static: bool) -> None:
        self._buffers = list(buffers)
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for buffer in buffers:
            kinds.setdefault(buffer.dtype, []).append(buffer)
        self._kinds = list(kinds.values())
        # As the step found them: the buffers of each kind, one behind the other.
        self._before: list[Tensor] = []
        # Of the step that has begun: its losses, added up; above 0 if it is to be left out.
        self._step = torch.zeros(2, device=compute)
        self._losses, self._bad = self._step.unbind()
        self._may_be_bad = False  # `_bad` has to be looked at
        self._finite = True  # the losses that were read
        self.verdicts = torch.tensor([0.0, 1.0], device=compute).unbind()  # fine, diverged
        if static:
            self.begin()

    def begin(self) -> None:
        """Before the forward passes of a step: keep what they change."""
        if not self._kinds:
            return
        if not self._before:
            self._before = [_joined(kind) for kind in self._kinds]
            return
        for kind, before in zip(self._kinds, self._before, strict=True):
            torch.cat([buffer.flatten() for buffer in kind], out=before)

    def note_loss(self, loss: Tensor) -> Tensor:
        """The loss as it counts: 0 if it is not finite."""
        self._losses.add_(loss)
        return torch.nan_to_num(loss, nan=0.0, posinf=0.0, neginf=0.0)

    def read_loss(self, loss: Tensor) -> float:
        """The same, read at once."""
        number = loss.item()
        if math.isfinite(number):
            return number
        self._finite = False
        self._losses.fill_(torch.nan)  # for a checkpoint
        return 0.0

    def leave_out(self, bad: Tensor) -> None:
        self._bad.add_(bad)
        self._may_be_bad = True

    def judge(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Above 0: the step is to be undone; because a loss or a gradient is not finite."""
        everything = self._sum(gradients)
        diverged = everything - everything != 0  # of infinity and NaN it is NaN
        undone = diverged | (self._bad > 0)
        self._step.zero_()
        return undone.float(), diverged.float()

    def judge_now(self, gradients: Sequence[Tensor]) -> tuple[bool, bool]:
        """The same of losses that were read: on a CPU few operations matter more than not to
        wait."""
        norms = torch._foreach_norm(list(gradients))
        if len(norms) > _FEW:
            norms = (torch.stack(norms).sum(),)
        diverged = not (self._finite and all([math.isfinite(norm.item()) for norm in norms]))
        undone = diverged or (self._may_be_bad and bool(self._bad > 0))
        if self._may_be_bad or not self._finite:
            self._step.zero_()
            self._may_be_bad, self._finite = False, True
        return undone, diverged

    def _sum(self, gradients: Sequence[Tensor]) -> Tensor:
        """Finite if all losses and gradients are."""
        norms = torch._foreach_norm(list(gradients))
        return torch.stack([*norms, self._losses]).sum()

    def put_back(self, undone: Tensor | None = None) -> None:
        """The buffers as they were, if ``undone`` is above 0."""
        chosen = None if undone is None else undone > 0
        for kind, before in zip(self._kinds, self._before, strict=True):
            back = before if chosen is None else torch.where(chosen, before, _joined(kind))
            torch._foreach_copy_(kind, _parted(back, kind))

    # ---- checkpoint: between two parts of a mini-batch ---------------------------------------

    def save(self) -> Tensors:
        losses = self._losses
        tensors = {"undo": self._bad.clone(), "diverged": (losses - losses != 0).float()}
        for kind, before in zip(self._kinds, self._before, strict=bool(self._before)):
            for buffer, part in zip(kind, _parted(before, kind), strict=True):
                place = next(n for n, own in enumerate(self._buffers) if own is buffer)
                tensors[f"before.{place}"] = part.clone()
        return tensors

    def restore(self, tensors: Tensors) -> None:
        self._bad.copy_(tensors["undo"])
        self._may_be_bad = True
        self._finite = not bool(tensors["diverged"] > 0)
        self._losses.fill_(0.0 if self._finite else torch.nan)
        if not all(f"before.{number}" in tensors for number in range(len(self._buffers))):
            return
        kept = {id(b): tensors[f"before.{number}"] for number, b in enumerate(self._buffers)}
        now = [_joined([kept[id(buffer)] for buffer in kind]) for kind in self._kinds]
        if self._before:
            torch._foreach_copy_(self._before, [tensor.to(self._step.device) for tensor in now])
        else:
            self._before = now


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _parted(joined: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(joined, [tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]
