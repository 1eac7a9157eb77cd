"""Named tensors and how they become payloads.

Tensors carry the names they have in the whole model; the auxiliary network's begin with ``aux.``.
An activation batch holds ``activations.0``, ``activations.1`` (a mask, say) and ``labels``; a part
of a mini-batch also its ``share`` of it, so that the parts' gradients add up to the whole's.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedoptima.core.errors import InvariantBroken
from fedoptima.core.types import Payload, PayloadId
from fedoptima.engine.flat import FlatTensors, in_one_piece
from fedoptima.models.activation import map_tensors, tensors_of

Tensors = dict[str, Tensor]
LABELS = "labels"
SHARE = "share"  # of the mini-batch, where a part of one travels alone
ACTIVATIONS = "activations."
AUXILIARY = "aux."


def pack(identity: PayloadId, tensors: Tensors) -> Payload:
    return Payload(identity, sum(tensor.nbytes for tensor in tensors.values()), tensors)


def unpack(payload: Payload) -> Tensors:
    if not isinstance(payload.value, dict):
        raise InvariantBroken(f"payload {payload.id} has lost its tensors")
    return payload.value


def copy_of(tensors: Mapping[str, Tensor]) -> Tensors:
    """What leaves a node is a copy: the node's next step must not change it."""
    if isinstance(tensors, FlatTensors):
        return in_one_piece(tensors)
    if not any(tensor.is_cuda for tensor in tensors.values()):
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}
    copies = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    copy_all(copies, tensors)
    return copies


def copy_all(to: Mapping[str, Tensor], source: Mapping[str, Tensor], prefix: str = "") -> None:
    """Fill tensors with those of the same names; on a GPU in few launches."""
    with torch.no_grad():
        pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for name, tensor in to.items():
            own, other = pairs.setdefault(tensor.dtype, ([], []))
            own.append(tensor.detach())
            other.append(source[prefix + name].detach())
        for own, other in pairs.values():
            torch._foreach_copy_(own, other)


def name_activation(activation: object) -> Tensors:
    # Not copied: blocks never write into what crosses a cut (preprocess.cuts sees to that), and
    # autograd would notice if one did.
    tensors = tensors_of(activation)
    return {f"{ACTIVATIONS}{index}": tensor.detach() for index, tensor in enumerate(tensors)}


def rebuild_activation(tensors: Tensors, template: object, *, gradients: bool = True) -> object:
    """The activation in the form of ``template``.

    ``gradients``: they are needed for it; to compute those nobody is sent takes a third of the
    first layer's time.
    """
    if isinstance(template, Tensor):
        return _entering(tensors[f"{ACTIVATIONS}0"], gradients)
    found = iter(tensors[f"{ACTIVATIONS}{i}"] for i in range(len(tensors_of(template))))
    return map_tensors(template, lambda _: _entering(next(found), gradients))


def _entering(tensor: Tensor, gradients: bool) -> Tensor:
    return tensor.detach().requires_grad_() if gradients and tensor.is_floating_point() else tensor


def gradients_of(activation: object) -> Tensors:
    """The gradient of the loss for each tensor of the activation that can have one."""
    return {
        f"{ACTIVATIONS}{index}": torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        for index, tensor in enumerate(tensors_of(activation))
        if tensor.requires_grad
    }


def propagate(activation: object, gradients: Tensors) -> None:
    """The backward pass from an activation, with what `gradients_of` it the server has sent."""
    pairs = [
        (tensor, gradients[f"{ACTIVATIONS}{index}"])
        for index, tensor in enumerate(tensors_of(activation))
        if tensor.requires_grad
    ]
    torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])


def under(prefix: str, tensors: Tensors) -> Tensors:
    """Those whose names begin with the prefix, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
