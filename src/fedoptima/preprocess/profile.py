"""What each block of a model costs, counted by really running it forward and backward.

Counts are per sample and do not depend on the machine (`preprocess.work`). Profiling does not
change the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.core.plan import BlockProfile
from fedoptima.models.activation import call, is_inputs, map_tensors, samples_in, tensors_of
from fedoptima.preprocess.cuts import Cuttable
from fedoptima.preprocess.isolation import isolated
from fedoptima.preprocess.split import Profile
from fedoptima.preprocess.work import WrittenElements, counter, plain_kernels


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

    with isolated(module, example) as copy, torch.enable_grad(), plain_kernels():
        inputs = map_tensors(example, entering)
        with counter() as forward, WrittenElements() as written:
            output = call(copy, inputs)
        outputs = [tensor for tensor in tensors_of(output) if tensor.requires_grad]
        with counter() as backward:
            if outputs:
                torch.autograd.backward(outputs, [torch.ones_like(tensor) for tensor in outputs])
    counted = forward.get_total_flops()
    by_formula = written.unknown() if counted else written.all()
    extra = sum(by_formula.values())
    # As for products: as much again for the gradient of the weights, and for that of the input.
    trained = any(parameter.requires_grad for parameter in module.parameters())
    gradients = trained + input_gradient if outputs else 0
    return map_tensors(output, torch.detach), BlockProfile(
        name=name,
        forward_flops=(counted + extra) / samples,
        backward_flops=(backward.get_total_flops() + gradients * extra) / samples,
        output_bytes=sum(tensor.nbytes for tensor in tensors_of(output)) // samples,
        gradient_bytes=sum(
            tensor.nbytes for tensor in tensors_of(output) if tensor.is_floating_point()
        )
        // samples,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        parameter_bytes=sum(tensor.nbytes for tensor in module.state_dict().values()),
        by_formula=tuple(sorted(by_formula)),
    )


def _samples(example: object) -> int:
    samples = samples_in(example) if is_inputs(example) else 0
    if samples == 0:
        raise ConfigError(
            "profiling needs a batch of at least one sample, as a tensor or a tuple or dict of "
            f"tensors, samples first; got {type(example).__name__}"
        )
    return samples
