"""What may cross a cut: one tensor, or a flat tuple of tensors that belong to the same samples.

Everything that carries, counts or detaches activations goes through the two functions here, so a
block is free to hand on more than one tensor (a transformer hands on its padding mask).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Masked(NamedTuple):
    """Hidden states (batch, length, dim) and a mask (batch, length), True where they are padding.

    The mask travels with the activations: the server never sees the tokens it came from.
    """

    hidden: Tensor
    mask: Tensor


def is_activation(value: object) -> bool:
    """Whether ``value`` can be sent from one side of a cut to the other."""
    if isinstance(value, Tensor):
        return True
    return isinstance(value, tuple) and bool(value) and all(isinstance(v, Tensor) for v in value)


def tensors_of(activation: object) -> tuple[Tensor, ...]:
    """The tensors of an activation, in a fixed order."""
    if isinstance(activation, Tensor):
        return (activation,)
    if isinstance(activation, tuple) and is_activation(activation):
        return tuple(activation)
    raise TypeError(f"an activation is a tensor or a tuple of tensors, not {activation!r:.80}")


def map_tensors(activation: object, change: Callable[[Tensor], Tensor]) -> object:
    """The same activation with every tensor replaced by ``change(tensor)``."""
    changed = [change(tensor) for tensor in tensors_of(activation)]
    if isinstance(activation, Tensor):
        return changed[0]
    kind = type(activation)
    return kind(*changed) if hasattr(kind, "_fields") else tuple(changed)
