"""Does a model that was taken apart compute and learn what the whole one does? It is tried out.

A graph shows what a forward computes. Much that decides what a model learns is not in it: the
backward pass of an autograd function, hooks, ``torch.no_grad`` or autocast around modules, numbers
that are drawn at random without regard to the data, a ``train()`` that leaves modules as they are.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from fedoptima.models.activation import call, map_tensors

_ROWS = 3
_TOLERANCE = 1e-4  # of the largest number in a tensor: other roundings are no difference
_NOISE = 1e-6  # of the largest number of its kind: what would be 0 but for roundings

_Outcome = dict[str, dict[str, Tensor]]  # by what it is, then by name


def difference(model: nn.Module, part: nn.Module, example: object) -> str | None:
    """What ``part``, all pieces of a model, makes otherwise than the model; None: nothing."""
    rows = map_tensors(example, lambda tensor: tensor[torch.arange(_ROWS) % len(tensor)])
    for training in (True, False):
        try:
            whole = _outcome(model, rows, training)
        except Exception:  # whoever trains or evaluates the model says what is wrong
            return None
        try:
            found = _compare(whole, _outcome(part, rows, training))
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        # A model that does not do the same twice cannot be compared with anything.
        if found and _compare(whole, _outcome(model, rows, training)) is None:
            return f"{found}, in {'training' if training else 'evaluation'}"
    return None


def _outcome(module: nn.Module, rows: object, training: bool) -> _Outcome:
    """Of a step, backward too in training: on a copy, and always with the same numbers drawn."""
    copy = deepcopy(module).train(training)
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(training):
        torch.default_generator.manual_seed(0)  # a model is on the CPU before it is trained
        output = call(copy, map_tensors(rows, torch.clone))
        if not isinstance(output, Tensor):
            raise TypeError(f"a {type(output).__name__} and no tensor is returned")
        if output.requires_grad:
            weights = torch.linspace(1, 2, output.numel()).to(output).view_as(output)
            torch.autograd.backward((output * weights).sum())
    trained = copy.named_parameters(remove_duplicate=False)
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in trained}
    buffers = dict(copy.named_buffers(remove_duplicate=False))
    return {
        "another output": {"": output.detach()},
        "another gradient of": gradients,
        "another buffer": buffers,
    }


def _compare(whole: _Outcome, other: _Outcome) -> str | None:
    for what, tensors in whole.items():
        rounded = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
        noise = _NOISE * max(map(_largest, rounded), default=0.0)
        for name, tensor in tensors.items():
            found = other[what].get(name)
            if found is None:  # a tensor that the model does not save
                continue
            bound = noise + _TOLERANCE * _largest(tensor)
            expected, found = _plain(tensor), _plain(found)
            if not torch.allclose(expected, found, rtol=0, atol=bound, equal_nan=True):
                return f"{what} {name!r}" if name else what
    return None


def _largest(tensor: Tensor) -> float:
    return float(_plain(tensor).nan_to_num(0.0, 0.0, 0.0).abs().max()) if tensor.numel() else 0.0


def _plain(tensor: Tensor) -> Tensor:
    """In double precision; the gradient of an embedding may be sparse."""
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return torch.view_as_real(dense).double() if dense.is_complex() else dense.double()
