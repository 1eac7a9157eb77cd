"""A model that cannot be trained, or does not take the data: what the user can do about it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import Inputs, tensors_of


def check_complete(model: nn.Module) -> None:
    """A lazy module has no weights before its first call, and nobody could be sent them."""
    for name, module in model.named_modules():
        if any(is_lazy(own) for own in (*module._parameters.values(), *module._buffers.values())):
            raise ConfigError(
                f"model: {name or 'it'} ({type(module).__name__}) has no weights before its first "
                "call; call the model once with a batch of inputs where you make it"
            )


def check_trained(model: nn.Module) -> None:
    """Where only a side of it is frozen, that depends on the cut."""
    if any(parameter.requires_grad for parameter in model.parameters()):
        return
    if any(True for _ in model.parameters()):
        raise ConfigError(
            "model: nothing can be trained, for all its parameters are frozen (requires_grad is "
            "False); unfreeze it, or the parts that are to be trained, with .requires_grad_(True)"
        )
    raise ConfigError("model: nothing can be trained, for it has no parameters")


def remedy(model: nn.Module, example: Inputs, error: Exception) -> str:
    """What follows torch's words for why the model does not take the example; often nothing."""
    if isinstance(error, TypeError):
        return (
            "; several inputs of a model are a tuple, for model(*x), or a dict, for model(**x), in "
            "place of one x: ((a, b), labels)"
        )
    if "dtype" not in str(error):
        return ""
    other = {p.dtype for p in model.parameters() if p.is_floating_point()} - {torch.float32}
    if other:
        return "; the model must be in float32: convert it with .float()"
    if not all(tensor.is_floating_point() for tensor in tensors_of(example)):
        return "; if the inputs are numbers and no token ids, give them as such: inputs.float()"
    return ""
