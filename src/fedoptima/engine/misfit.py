"""A model that cannot be trained, is evaluated wrongly, or does not take the data: the way out."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from fedoptima.config.training import Precision
from fedoptima.core.errors import ConfigError
from fedoptima.engine.value_ranges import ORDERED
from fedoptima.models.activation import Inputs, tensors_of


def check_complete(model: nn.Module) -> None:
    """A lazy module has no weights before its first call, and nobody could be sent them."""
    for name, module in model.named_modules():
        if any(is_lazy(own) for own in (*module._parameters.values(), *module._buffers.values())):
            raise ConfigError(
                f"model: {name or 'it'} ({type(module).__name__}) has no weights before its first "
                "call; call the model once with a batch of inputs where you make it"
            )


def check_copies(model: nn.Module) -> None:
    """Devices train copies of the model, which have no hooks on single tensors."""
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ConfigError(
                f"model: {name} has a hook on its gradient, which a copy for a device would not "
                "have; compute what it does in the forward, or freeze what is not to be trained "
                "with .requires_grad_(False)"
            )


def check_tensors(model: nn.Module) -> None:
    """All that a model saves is sent and merged: real numbers, in tensors that have a mean."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"model: {name}, which it saves, is no tensor but {type(value).__name__}; only "
                "tensors are sent and merged: leave out layers that were quantised already, and "
                "keep other state where state_dict() does not look"
            )
        if value.is_complex():
            raise ConfigError(
                f"model: {name} is complex, and only real numbers are sent and merged; keep "
                "torch.view_as_real of it, and call torch.view_as_complex in the forward. A "
                "constant may stay as it is with register_buffer(..., persistent=False)"
            )
        if value.dtype not in ORDERED or value.layout is not torch.strided:
            raise ConfigError(
                f"model: {name} ({value.dtype}, {value.layout}) is of a kind that cannot be "
                "merged; keep it as a dense tensor of float32 or int64"
            )


def check_precision_of(model: nn.Module, precision: Precision) -> None:
    """Torch's autocast is for weights in float32, and what crosses the cut is float32 with it."""
    low = [p.dtype for p in model.parameters() if p.dtype in (torch.bfloat16, torch.float16)]
    if precision == "bf16" and low:
        raise ConfigError(
            f"training.precision = 'bf16': is for a model in float32, and this one has weights in "
            f"{str(low[0]).removeprefix('torch.')}; leave it out, or convert the model with "
            ".float()"
        )


def check_scripts(model: nn.Module) -> None:
    """The weights of a copy of a script are no leaves of autograd: they get no gradient."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and any(True for _ in module.parameters()):
            raise ConfigError(
                f"model: {name or 'it'} was compiled by torch.jit, and a device's copy of it would "
                "not be trained; give the module from before torch.jit.script or torch.jit.trace"
            )


def copy_of(model: nn.Module) -> nn.Module:
    try:
        return deepcopy(model)
    except Exception as error:
        raise ConfigError(
            f"model: {type(model).__name__} cannot be copied, and each device trains a copy "
            f"({type(error).__name__}: {str(error).partition('. ')[0]}); keep nothing in its "
            "attributes that a forward has computed, and no locks, files or generators; make "
            "pruning permanent with torch.nn.utils.prune.remove"
        ) from error


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


USUAL = 0.1  # torch's own momentum of running statistics
ENOUGH = 0.5  # of the way, in a round


def slow_statistics(model: nn.Module, steps: int) -> str:
    """A warning, if running statistics cannot keep up with the weights; else nothing.

    They begin at 0 and 1, and move only while a device trains; asynchronous merges then take a part
    of what each has seen. Models that are made for long training in one place (MobileNetV3 and
    EfficientNet of torchvision and timm) have a tenth of the usual momentum.
    """
    slow = {
        name: module.momentum
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats
        if module.momentum is not None and module.momentum < USUAL
        if (1 - module.momentum) ** steps > 1 - ENOUGH
    }
    if not slow:
        return ""
    name, momentum = min(slow.items(), key=lambda found: found[1])
    others = f" and {len(slow) - 1} more" if len(slow) > 1 else ""
    return (
        f"model: batch normalisation with momentum = {momentum:g} ({name}{others}) moves its "
        f"running statistics {1 - (1 - momentum) ** steps:.0%} of the way in a round of {steps} "
        "steps, so the model is evaluated with statistics that do not fit its weights; set their "
        f"momentum to {USUAL:g}, of every m in model.modules() that has an m.running_var"
    )


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
    if any(tensor.dtype != torch.float32 for tensor in tensors_of(example)):
        return "; give the inputs as float32: inputs.float()"
    return ""
