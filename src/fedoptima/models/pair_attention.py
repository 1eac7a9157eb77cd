"""Attention for heads of dimension 2 on CUDA: exact, in float32, without a matrix of scores.

Transformer-12 has 50 heads of dimension 2. PyTorch's fused kernels take them filled up to 8, which
is four times the work; its plain ones write 12 x 655 MB of scores for every batch of 50 reviews.
Here a thread keeps a few rows in registers and walks over the columns, up to the last word of a
text: the padding after it is left out. Every sum has one order, so results repeat bit for bit.

Imported only where there is a GPU: it needs Triton, which PyTorch's CUDA builds bring along.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 128  # of one program
LOG2E = 1.4426950408889634


@triton.jit
def _forward(
    q, k, v, bias, lengths, out, sums, step, sample_step, size, heads, scale, rows: tl.constexpr
):
    head, sample, start = tl.program_id(0), tl.program_id(1), tl.program_id(2) * rows
    length = tl.load(lengths + sample)
    row = start + tl.arange(0, rows)
    total = tl.full((rows,), 1.0, tl.float32)
    top = tl.full((rows,), 0.0, tl.float32)
    out0 = tl.full((rows,), 0.0, tl.float32)
    out1 = tl.full((rows,), 0.0, tl.float32)
    if start < length:
        base = sample * sample_step + head * 2
        q0 = tl.load(q + base + row * step, mask=row < length, other=0.0) * scale
        q1 = tl.load(q + base + row * step + 1, mask=row < length, other=0.0) * scale
        top = top - float("inf")
        for j in range(length):
            k0 = tl.load(k + base + j * step)
            k1 = tl.load(k + base + j * step + 1)
            away = tl.load(bias + sample * size + j)
            top = tl.maximum(top, q0 * k0 + (q1 * k1 + away))
        total = total - 1.0
        for j in range(length):
            k0 = tl.load(k + base + j * step)
            k1 = tl.load(k + base + j * step + 1)
            v0 = tl.load(v + base + j * step)
            v1 = tl.load(v + base + j * step + 1)
            away = tl.load(bias + sample * size + j)
            share = tl.exp2(q0 * k0 + (q1 * k1 + (away - top)))
            total += share
            out0 += share * v0
            out1 += share * v1
    place = ((sample * size + row) * heads + head) * 2
    tl.store(out + place, tl.where(row < length, out0 / total, 0.0), mask=row < size)
    tl.store(out + place + 1, tl.where(row < length, out1 / total, 0.0), mask=row < size)
    tl.store(sums + (sample * heads + head) * size + row, top + tl.log2(total), mask=row < size)


@triton.jit
def _backward_queries(
    q, k, v, bias, lengths, out, sums, grad, deltas, dq, step, sample_step, size, heads, scale,
    natural, rows: tl.constexpr,
):  # fmt: skip
    head, sample, start = tl.program_id(0), tl.program_id(1), tl.program_id(2) * rows
    length = tl.load(lengths + sample)
    row = start + tl.arange(0, rows)
    inside = row < length
    base = sample * sample_step + head * 2
    dq0 = tl.full((rows,), 0.0, tl.float32)
    dq1 = tl.full((rows,), 0.0, tl.float32)
    if start < length:
        place = ((sample * size + row) * heads + head) * 2
        flat = (sample * heads + head) * size + row
        q0 = tl.load(q + base + row * step, mask=inside, other=0.0) * scale
        q1 = tl.load(q + base + row * step + 1, mask=inside, other=0.0) * scale
        g0 = tl.load(grad + place, mask=inside, other=0.0)
        g1 = tl.load(grad + place + 1, mask=inside, other=0.0)
        delta = g0 * tl.load(out + place, mask=inside, other=0.0)
        delta += g1 * tl.load(out + place + 1, mask=inside, other=0.0)
        tl.store(deltas + flat, delta, mask=inside)
        total = tl.load(sums + flat, mask=inside, other=0.0)
        for j in range(length):
            k0 = tl.load(k + base + j * step)
            k1 = tl.load(k + base + j * step + 1)
            v0 = tl.load(v + base + j * step)
            v1 = tl.load(v + base + j * step + 1)
            away = tl.load(bias + sample * size + j)
            share = tl.exp2(q0 * k0 + (q1 * k1 + (away - total)))
            slope = share * (g0 * v0 + (g1 * v1 - delta))
            dq0 += slope * k0
            dq1 += slope * k1
    tl.store(dq + base + row * step, tl.where(inside, dq0 * natural, 0.0), mask=row < size)
    tl.store(dq + base + row * step + 1, tl.where(inside, dq1 * natural, 0.0), mask=row < size)


@triton.jit
def _backward_keys(
    q, k, v, bias, lengths, sums, grad, deltas, dk, dv, step, sample_step, size, heads, scale,
    natural, rows: tl.constexpr,
):  # fmt: skip
    head, sample, start = tl.program_id(0), tl.program_id(1), tl.program_id(2) * rows
    length = tl.load(lengths + sample)
    row = start + tl.arange(0, rows)
    inside = row < length
    base = sample * sample_step + head * 2
    dk0 = tl.full((rows,), 0.0, tl.float32)
    dk1 = tl.full((rows,), 0.0, tl.float32)
    dv0 = tl.full((rows,), 0.0, tl.float32)
    dv1 = tl.full((rows,), 0.0, tl.float32)
    if start < length:
        k0 = tl.load(k + base + row * step, mask=inside, other=0.0) * scale
        k1 = tl.load(k + base + row * step + 1, mask=inside, other=0.0) * scale
        v0 = tl.load(v + base + row * step, mask=inside, other=0.0)
        v1 = tl.load(v + base + row * step + 1, mask=inside, other=0.0)
        away = tl.load(bias + sample * size + row, mask=inside, other=0.0)
        query = q + base
        gradient = grad + (sample * size * heads + head) * 2
        known = sums + (sample * heads + head) * size
        extra = deltas + (sample * heads + head) * size
        for _ in tl.range(0, length, loop_unroll_factor=4):
            q0 = tl.load(query)
            q1 = tl.load(query + 1)
            g0 = tl.load(gradient)
            g1 = tl.load(gradient + 1)
            total = tl.load(known)
            delta = tl.load(extra)
            query += step
            gradient += heads * 2
            known += 1
            extra += 1
            share = tl.exp2(q0 * k0 + (q1 * k1 + (away - total)))
            slope = share * (g0 * v0 + (g1 * v1 - delta))
            dk0 += slope * q0
            dk1 += slope * q1
            dv0 += share * g0
            dv1 += share * g1
    tl.store(dk + base + row * step, tl.where(inside, dk0 * natural, 0.0), mask=row < size)
    tl.store(dk + base + row * step + 1, tl.where(inside, dk1 * natural, 0.0), mask=row < size)
    tl.store(dv + base + row * step, tl.where(inside, dv0, 0.0), mask=row < size)
    tl.store(dv + base + row * step + 1, tl.where(inside, dv1, 0.0), mask=row < size)


class PairAttention(torch.autograd.Function):
    """(batch, heads, length, 2) three times, as views of one projection."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
        batch, heads, size, _ = q.shape
        assert q.stride() == k.stride() == v.stride()
        assert q.stride()[1::2] == (2, 1)
        out = torch.empty(batch, size, heads, 2, device=q.device)
        sums = torch.empty(batch, heads, size, device=q.device)
        grid = (heads, batch, triton.cdiv(size, ROWS))
        sizes = (q.stride(2), q.stride(0), size, heads, 2**-0.5 * LOG2E)
        _forward[grid](q, k, v, bias, lengths, out, sums, *sizes, rows=ROWS, num_warps=1)
        ctx.save_for_backward(q, k, v, bias, lengths, out, sums)
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, lengths, out, sums = ctx.saved_tensors
        batch, heads, size, _ = q.shape
        grad = grads[0].transpose(1, 2).contiguous()
        deltas = torch.empty_like(sums)
        dq, dk, dv = (
            torch.empty(batch, size, 3, heads, 2, device=q.device).permute(2, 0, 3, 1, 4).unbind(0)
        )
        grid = (heads, batch, triton.cdiv(size, ROWS))
        assert dq.stride() == q.stride()  # the kernels write where they read
        sizes = (q.stride(2), q.stride(0), size, heads, 2**-0.5 * LOG2E, 2**-0.5)
        _backward_queries[grid](
            q, k, v, bias, lengths, out, sums, grad, deltas, dq, *sizes, rows=ROWS, num_warps=1
        )  # fmt: skip
        _backward_keys[grid](
            q, k, v, bias, lengths, sums, grad, deltas, dk, dv, *sizes, rows=ROWS, num_warps=1
        )  # fmt: skip
        return dq, dk, dv, None, None


def pair_attention(packed: Tensor, bias: Tensor) -> Tensor:
    """(batch, length, queries keys values, heads, 2) to (batch, heads, length, 2).

    ``bias``, (batch, 1, 1, length), is 0 where there is a word. Rows after the last one are zero.
    """
    queries, keys, values = packed.contiguous().permute(2, 0, 3, 1, 4)
    bias = bias[:, 0, 0, :].contiguous()
    places = torch.arange(1, bias.shape[1] + 1, device=bias.device, dtype=torch.int32)
    lengths = torch.where(bias == 0, places, 0).amax(dim=1)
    out: Tensor = PairAttention.apply(queries, keys, values, bias, lengths)  # type: ignore[no-untyped-call]
    return out
