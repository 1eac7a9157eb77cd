"""In which number format a run multiplies (`training.precision`).

float32   as torch does by default: products of matrices in float32; cuDNN's convolutions of
          float32 on a GPU multiply in TF32
tf32      products of matrices too, on an NVIDIA GPU
bf16      torch's autocast: products in bfloat16, sums that need it in float32

Weights, gradients of weights, momentum, losses and what crosses a cut are float32 in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from fedoptima.config.training import Precision
from fedoptima.models.activation import call, map_tensors

Forward = Callable[[nn.Module, object], object]


as_it_is: Forward = call


def set_products(precision: Precision) -> None:
    """For the whole process; `deterministic` puts back what was."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def forward(
    module: nn.Module, value: object, precision: Precision, compute: torch.device
) -> object:
    """The module's output. In bf16 it is float32 again: a loss or a link takes it from there."""
    if precision != "bf16":
        return as_it_is(module, value)
    with products(precision, compute):
        output = call(module, value)
    return map_tensors(output, _as_float32)


def products(precision: Precision, compute: torch.device) -> AbstractContextManager[object]:
    """Forward passes in here multiply in the run's precision."""
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(compute.type, torch.bfloat16)


def _as_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor
