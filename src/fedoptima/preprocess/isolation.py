"""A model is examined through a copy, so that trying it out does not change the caller's model.

That covers its buffers, gradients, train/eval mode and the generators its dropout draws from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import nn

from fedoptima.models.activation import is_inputs, tensors_of


@contextmanager
def isolated(module: nn.Module, example: object) -> Iterator[nn.Module]:
    """A copy of ``module`` in evaluation mode, to be run on data like ``example``.

    Evaluation mode costs the same FLOPs and does not ask batch-norm for more than one sample.
    """
    used = tensors_of(example) if is_inputs(example) else ()
    on_cuda = {tensor.device for tensor in used if tensor.is_cuda}
    with torch.random.fork_rng(devices=sorted(on_cuda, key=str)):
        yield deepcopy(module).eval()
