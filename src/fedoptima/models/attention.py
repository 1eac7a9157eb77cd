"""Attention by a fused kernel, for heads of any dimension, and repeatable.

Fused CUDA kernels read heads in steps of 8 numbers: the 50 heads of dimension 2 of Transformer-12
once ended in an illegal address, and torch's plain kernels write the whole matrix of scores. Heads
are therefore filled up with zeros, which add nothing to a product, and the scale of the true
dimension is given. The result equals that of the plain kernels up to rounding. On a CPU the fused
kernel takes any dimension, zeros made it no faster (measured for dimension 2), and there are none.
Heads of dimension 2 in float32 have a kernel of their own where Triton is installed.
"""

from __future__ import annotations

import math
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

STEP = 8  # numbers that a fused CUDA kernel reads at once


def attention(packed: Tensor, mask: Tensor) -> Tensor:
    """Self-attention of (batch, length, queries keys values, heads, dim); the mask is of padding.

    Returns (batch, length, heads x dim).
    """
    batch, length, _, heads, dim = packed.shape
    # A finite number, not -inf: a row of padding only must not become NaN. Not the lowest one
    # either: kernels multiply it by log2(e).
    bias = mask[:, None, None, :].to(packed.dtype) * (torch.finfo(packed.dtype).min / 2)
    if not packed.is_cuda:
        mixed = plain(packed, bias)
    elif dim == 2 and packed.dtype == torch.float32 and _has_triton():
        from fedoptima.models.pair_attention import pair_attention

        mixed = pair_attention(packed, bias)
    else:
        mixed = fused(packed, bias)
    return mixed.transpose(1, 2).reshape(batch, length, heads * dim)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def plain(packed: Tensor, bias: Tensor) -> Tensor:
    queries, keys, values = packed.permute(2, 0, 3, 1, 4)
    return scaled_dot_product_attention(queries, keys, values, attn_mask=bias)


def fused(packed: Tensor, bias: Tensor) -> Tensor:
    """The same, with heads filled up to a multiple of `STEP`."""
    dim = packed.shape[-1]
    queries, keys, values = pad(packed, (0, -dim % STEP)).permute(2, 0, 3, 1, 4)
    mixed = scaled_dot_product_attention(
        queries, keys, values, attn_mask=bias, scale=1.0 / math.sqrt(dim)
    )
    _make_repeatable(mixed)
    return mixed[..., :dim]


def _make_repeatable(result: Tensor) -> None:
    """Its backward pass adds in a fixed order where a run asks for repeatable kernels.

    The memory-efficient kernel can do so, but does only where operations without a repeatable
    kernel are errors; a run merely warns of those. So they are errors while this one is started.
    """
    node = result.grad_fn
    if node is None or not torch.is_deterministic_algorithms_warn_only_enabled():
        return
    node.register_prehook(lambda _: torch.use_deterministic_algorithms(True))
    node.register_hook(lambda *_: torch.use_deterministic_algorithms(True, warn_only=True))
