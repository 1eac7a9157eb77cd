"""What a model takes in, and what may cross a cut: tensors that belong to the same samples.

The inputs of a batch are a tensor, a tuple of tensors or a dict of tensors; a whole model is called
``model(x)``, ``model(*x)`` or ``model(**x)``. What crosses a cut is one tensor or a flat tuple, and
the next part takes it as one value. Everything that carries, counts or detaches either goes through
the functions here, so a block is free to hand on more than one tensor (a transformer hands on its
padding mask).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from torch import Tensor, nn

Value = TypeVar("Value")
Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


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


def is_inputs(value: object) -> bool:
    """Whether a model can be given ``value``; what may cross a cut can."""
    if isinstance(value, dict):
        return bool(value) and all(
            isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items()
        )
    return is_activation(value)


def tensors_of(value: object) -> tuple[Tensor, ...]:
    """The tensors of an activation or of inputs, in a fixed order."""
    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, tuple | dict) and is_inputs(value):
        return tuple(value.values() if isinstance(value, dict) else value)
    raise TypeError(f"neither a tensor nor a tuple or dict of tensors: {value!r:.80}")


def map_tensors(value: Value, change: Callable[[Tensor], Tensor]) -> Value:
    """The same activation or inputs with every tensor replaced by ``change(tensor)``."""
    changed = [change(tensor) for tensor in tensors_of(value)]
    made: object
    if isinstance(value, Tensor):
        made = changed[0]
    elif isinstance(value, dict):
        made = dict(zip(value, changed, strict=True))
    else:
        kind = type(value)
        made = kind(*changed) if hasattr(kind, "_fields") else tuple(changed)
    return made  # type: ignore[return-value]


def samples_in(value: object) -> int:
    """How many samples a batch has."""
    first = tensors_of(value)[0]
    return first.shape[0] if first.dim() else 0


def call(model: nn.Module, value: object) -> object:
    """What a whole model or a part of one makes of a batch.

    Several inputs are its arguments, unless it takes them as one value: a part that begins at a cut
    and an ``nn.Sequential`` do. Of an output with ``logits`` (Hugging Face, or a dict) these are
    the output.
    """
    output: object
    if isinstance(value, Tensor) or takes_one_value(model):
        output = model(value)
    elif isinstance(value, dict):
        output = model(**value)
    elif isinstance(value, tuple):
        output = model(*value)
    else:
        output = model(value)
    if isinstance(output, Tensor):
        return output
    named = output.get("logits") if isinstance(output, dict) else None
    logits = getattr(output, "logits", named)
    return logits if isinstance(logits, Tensor) else output


def takes_one_value(model: nn.Module) -> bool:
    """Parts of a model say so by their attribute ``one_value``."""
    chain = isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward
    return chain or getattr(model, "one_value", False) is True


def shapes_in_words(value: object) -> str:
    """As ``(2, 3, 32, 32) torch.float32``, one after the other."""
    if not is_inputs(value):
        return type(value).__name__
    named = value if isinstance(value, dict) else {}
    names = [f"{name} " for name in named] or [""] * len(tensors_of(value))
    return ", ".join(
        f"{name}{tuple(tensor.shape)} {tensor.dtype}"
        for name, tensor in zip(names, tensors_of(value), strict=True)
    )
