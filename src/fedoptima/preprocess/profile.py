"""What each block of a model costs, counted by really running it forward and backward.

Counts are per sample and do not depend on the machine: attention is counted through its math
kernel, whichever fused kernel would run here. Profiling does not change the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fedoptima.core.errors import ConfigError
from fedoptima.core.plan import BlockProfile
from fedoptima.models.activation import is_activation, map_tensors, tensors_of
from fedoptima.preprocess.cuts import Cuttable
from fedoptima.preprocess.isolation import isolated


@dataclass(frozen=True, slots=True)
class Profile:
    """The blocks of a whole model, in order."""

    blocks: tuple[BlockProfile, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(block.name for block in self.blocks)


def profile(blocks: Cuttable, example: object) -> Profile:
    """The costs of every block on ``example``, a batch of the model's input."""
    measured: list[BlockProfile] = []
    activation = example
    for index, name in enumerate(blocks.names):
        part = blocks.part(index, index + 1)
        # Data need no gradient; every later block passes one back to the block before.
        activation, block = _measure(name, part, activation, input_gradient=index > 0)
        measured.append(block)
    return Profile(tuple(measured))


def profile_module(module: nn.Module, example: object, *, name: str = "auxiliary") -> BlockProfile:
    """The costs of a module that passes a gradient back to what it stands on."""
    return _measure(name, module, example, input_gradient=True)[1]


def _measure(
    name: str, module: nn.Module, example: object, *, input_gradient: bool
) -> tuple[object, BlockProfile]:
    samples = _samples(example)

    def entering(tensor: Tensor) -> Tensor:
        fresh = tensor.detach().clone()
        return fresh.requires_grad_(input_gradient and fresh.is_floating_point())

    with isolated(module, example) as copy, torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        with _counter() as forward:
            output: object = copy(map_tensors(example, entering))
        outputs = [tensor for tensor in tensors_of(output) if tensor.requires_grad]
        with _counter() as backward:
            if outputs:
                torch.autograd.backward(outputs, [torch.ones_like(tensor) for tensor in outputs])
    return map_tensors(output, torch.detach), BlockProfile(
        name=name,
        forward_flops=forward.get_total_flops() / samples,
        backward_flops=backward.get_total_flops() / samples,
        output_bytes=sum(tensor.nbytes for tensor in tensors_of(output)) // samples,
        gradient_bytes=sum(tensor.nbytes for tensor in outputs) // samples,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        parameter_bytes=sum(tensor.nbytes for tensor in module.state_dict().values()),
    )


def _counter() -> FlopCounterMode:
    counted = {torch.ops.aten.convolution_backward: _convolution_backward}
    return FlopCounterMode(display=False, custom_mapping=counted)


def _convolution_backward(
    grad_out_shape: Sequence[int],
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    _bias: object,
    _stride: object,
    _padding: object,
    _dilation: object,
    transposed: bool,
    _output_padding: object,
    _groups: int,
    output_mask: Sequence[bool],
    out_shape: object = None,
) -> int:
    """As much as the forward pass for each of the gradients of input and weight.

    torch's own formula ignores the groups: it counts a depthwise convolution, which MobileNet is
    made of, as if every channel were joined with every other (up to 960 times too much).
    """
    positions = prod((x_shape if transposed else grad_out_shape)[2:])
    forward = 2 * x_shape[0] * positions * prod(w_shape)
    return forward * sum(output_mask[:2])


def _samples(example: object) -> int:
    samples = 0
    if is_activation(example):
        first = tensors_of(example)[0]
        samples = first.shape[0] if first.dim() else 0
    if samples == 0:
        raise ConfigError(
            "profiling needs a batch of at least one sample, as a tensor or a tuple of tensors, "
            f"samples first; got {type(example).__name__}"
        )
    return samples
