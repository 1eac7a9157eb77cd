"""What each block of a model costs, counted by really running it forward and backward.

Counts are per sample and do not depend on the machine (`preprocess.work`). Profiling does not
change the model. The bytes that operations move are counted where somebody asks (``traffic``): it
takes two more passes, over batches of different sizes, to tell what every sample moves from what a
batch moves once.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.core.plan import BlockProfile
from fedoptima.models.activation import call, is_inputs, map_tensors, samples_in, tensors_of
from fedoptima.preprocess.cuts import Cuttable
from fedoptima.preprocess.isolation import isolated
from fedoptima.preprocess.split import Entry, Profile
from fedoptima.preprocess.work import (
    MovedBytes,
    SavedTensors,
    WrittenElements,
    counter,
    plain_kernels,
)

# An additive mask has minus infinity or the lowest number there is where it masks: neither has a
# scale, and bfloat16 would make an infinity of the second.
_MASK = 1e30


def profile(blocks: Cuttable, example: object, *, traffic: bool = False) -> Profile:
    """The costs of every block on ``example``, a batch of the model's input."""
    measured: list[BlockProfile] = []
    activation = example
    for index, name in enumerate(blocks.names):
        part = blocks.part(index, index + 1)
        # Data need no gradient; every later block passes one back to the block before.
        output, block = _measure(name, part, activation, input_gradient=index > 0)
        if traffic:
            block = _with_traffic(block, part, activation, input_gradient=index > 0)
        measured.append(block)
        activation = output
    return Profile(tuple(measured))


def profile_module(
    module: nn.Module,
    example: object,
    *,
    name: str = "auxiliary",
    traffic: bool = False,
    input_gradient: bool = True,
) -> BlockProfile:
    """``input_gradient``: it passes a gradient back to what it stands on."""
    _, block = _measure(name, module, example, input_gradient=input_gradient)
    if not traffic:
        return block
    return _with_traffic(block, module, example, input_gradient=input_gradient)


def profile_entry(blocks: Cuttable, first: int, example: object, *, traffic: bool) -> Entry:
    """``example``: what enters the block behind the first so many."""
    flops, moved = 0.0, 0
    for index in range(first, len(blocks.names)):
        part = blocks.part(index, index + 1)
        answering, alone = (
            profile_module(part, example, traffic=traffic, input_gradient=wanted)
            for wanted in (True, False)
        )
        flops += answering.backward_flops - alone.backward_flops
        moved += answering.backward_moved - alone.backward_moved
        if any(parameter.requires_grad for parameter in part.parameters()):
            break  # from here on gradients are passed back, whoever wants them
        with torch.no_grad(), isolated(part, example) as copy:
            example = call(copy, example)
    return Entry(flops, moved)


def training_flops(module: nn.Module, example: object, *, input_gradient: bool) -> float:
    """Of a forward and a backward pass, for each sample."""
    _, block = _measure("", module, example, input_gradient=input_gradient)
    return block.forward_flops + block.backward_flops


def _entering(example: object, *, input_gradient: bool, times: int = 1) -> object:
    def fresh(tensor: Tensor) -> Tensor:
        copied = tensor.detach().clone() if times == 1 else torch.cat([tensor.detach()] * times)
        return copied.requires_grad_(input_gradient and copied.is_floating_point())

    return map_tensors(example, fresh)


def _measure(
    name: str, module: nn.Module, example: object, *, input_gradient: bool
) -> tuple[object, BlockProfile]:
    samples = _samples(example)
    with isolated(module, example) as copy, torch.enable_grad(), plain_kernels(copy):
        inputs = _entering(example, input_gradient=input_gradient)
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
        cut_rows=tuple(
            (place, tensor.numel() // samples)
            for place, tensor in enumerate(tensors_of(output))
            if is_codable(tensor) and float(tensor.detach().abs().amax()) < _MASK
        ),
        weight_rows=_weight_rows(module),
    )


def is_codable(tensor: Tensor) -> bool:
    """Would a codec make it smaller? int8 adds a scale to each row."""
    numbers = tensor[0].numel() if tensor.dim() and len(tensor) else 0
    return tensor.dtype == torch.float32 and numbers > 1


def _weight_rows(module: nn.Module) -> tuple[int, int] | tuple[()]:
    state, names = module.state_dict(), dict(module.named_parameters(remove_duplicate=False))
    coded = [state[name] for name in names if name in state and is_codable(state[name])]
    return (sum(t.numel() for t in coded), sum(map(len, coded))) if coded else ()


def _with_traffic(
    block: BlockProfile, module: nn.Module, example: object, *, input_gradient: bool
) -> BlockProfile:
    """In training mode: dropout moves bytes, too, and batch norm needs more than one sample."""
    samples = _samples(example)
    times = 1 if samples > 1 else 2
    fewer, more = (
        _moved(module, example, input_gradient=input_gradient, times=count)
        for count in (times, times + 1)
    )
    forward, backward, saved = (max(0, b - a) // samples for a, b in zip(fewer, more, strict=True))
    return replace(block, forward_moved=forward, backward_moved=backward, saved_bytes=saved)


def _moved(
    module: nn.Module, example: object, *, input_gradient: bool, times: int
) -> tuple[int, int, int]:
    """Bytes that a forward and a backward pass over the example, repeated, move; and that are kept
    between them."""
    with isolated(module, example) as copy, torch.enable_grad(), plain_kernels(copy):
        copy.train()
        inputs = _entering(example, input_gradient=input_gradient, times=times)
        saved = SavedTensors()
        with MovedBytes() as forward, saved:
            output = call(copy, inputs)
        kept = saved.bytes_beside(tensors_of(inputs), also=tensors_of(output))
        outputs = [tensor for tensor in tensors_of(output) if tensor.requires_grad]
        gradients = [torch.ones_like(tensor) for tensor in outputs]
        with MovedBytes() as backward:
            if outputs:
                torch.autograd.backward(outputs, gradients)
    return forward.total, backward.total, kept


def _samples(example: object) -> int:
    samples = samples_in(example) if is_inputs(example) else 0
    if samples == 0:
        raise ConfigError(
            "profiling needs a batch of at least one sample, as a tensor or a tuple or dict of "
            f"tensors, samples first; got {type(example).__name__}"
        )
    return samples
