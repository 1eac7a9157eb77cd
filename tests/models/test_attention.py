"""Attention with filled-up heads is attention: compared with torch's plain kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedoptima.engine.determinism import deterministic
from fedoptima.models.attention import _make_repeatable, attention, fused, plain
from fedoptima.models.transformer import transformer12

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
WHERE = ["cpu", pytest.param("cuda", marks=needs_cuda)]


def texts(
    lengths: list[int], heads: int, dim: int, length: int, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    packed = torch.randn(len(lengths), length, 3, heads, dim, generator=generator).to(device)
    padding = torch.arange(length) >= torch.tensor(lengths)[:, None]
    return packed.requires_grad_(), padding.to(device)


def both_ways(
    kernel: Callable[[Tensor, Tensor], Tensor], packed: Tensor, padding: Tensor
) -> tuple[Tensor, Tensor]:
    """The words' outputs, and the gradient of what goes in."""
    bias = padding[:, None, None, :].float() * (torch.finfo(torch.float32).min / 2)
    words = kernel(packed, bias) * ~padding[:, None, :, None]
    (gradient,) = torch.autograd.grad(words.square().sum(), packed)
    return words, gradient


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("heads", "dim"), [(5, 2), (3, 7), (2, 8), (2, 20)])
def test_filled_up_heads_give_the_plain_results_forward_and_backward(
    heads: int, dim: int, where: str
) -> None:
    packed, padding = texts([1, 6, 12, 13, 0], heads, dim, length=13, device=where)
    with sdpa_kernel(SDPBackend.MATH):
        expected = both_ways(plain, packed, padding)
    for found, wanted in zip(both_ways(fused, packed, padding), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=3e-5)


@needs_cuda
@pytest.mark.parametrize("length", [13, 150, 300])
def test_the_kernel_for_pairs_gives_the_plain_results_forward_and_backward(length: int) -> None:
    from fedoptima.models.pair_attention import pair_attention

    packed, padding = texts([1, 6, 12, 13, 0, length], heads=6, dim=2, length=length, device="cuda")
    padding[2, 3:7] = True  # words may follow padding
    with sdpa_kernel(SDPBackend.MATH):
        expected = both_ways(plain, packed, padding)
    found = both_ways(pair_attention, packed, padding)
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    again = both_ways(pair_attention, packed, padding)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("where", WHERE)
def test_what_is_padded_does_not_matter(where: str) -> None:
    packed, padding = texts([4, 9], heads=3, dim=2, length=9, device=where)
    other = torch.where(padding[:, :, None, None, None], 100.0, packed)
    words = ~padding[:, :, None]
    assert torch.equal(attention(packed, padding) * words, attention(other, padding) * words)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("where", WHERE)
def test_a_row_of_padding_only_stays_finite(where: str, dtype: torch.dtype) -> None:
    packed, padding = texts([0, 3], heads=2, dim=2, length=5, device=where)
    mixed = attention(packed.to(dtype), padding)
    mixed.float().sum().backward()
    assert packed.grad is not None
    assert mixed.isfinite().all()
    assert packed.grad.isfinite().all()


class Watched(torch.autograd.Function):
    """Keeps whether operations that are not repeatable were errors in its backward pass."""

    errors = False

    @staticmethod
    def forward(ctx: object, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        Watched.errors = (
            torch.are_deterministic_algorithms_enabled()
            and not torch.is_deterministic_algorithms_warn_only_enabled()
        )
        return gradient


@pytest.fixture
def any_kernels() -> Iterator[None]:
    """Whatever runs on other threads of this process have left behind."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(0)
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.mark.usefixtures("any_kernels")
def test_the_backward_pass_alone_asks_for_repeatable_kernels_without_exception() -> None:
    value = torch.ones(2, requires_grad=True)
    with deterministic():
        result = Watched.apply(value)
        _make_repeatable(result)
        result.sum().backward()
        assert Watched.errors
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    result = Watched.apply(value)
    _make_repeatable(result)
    result.sum().backward()
    assert not Watched.errors
    assert not torch.are_deterministic_algorithms_enabled()


@needs_cuda
@pytest.mark.parametrize(("heads", "dim"), [(50, 2), (5, 20)])
def test_a_gpu_takes_a_fused_kernel_and_repeats_it_bit_for_bit(heads: int, dim: int) -> None:
    packed, padding = texts([300, 17, 299] * 4, heads, dim, length=300, device="cuda")
    with deterministic(), sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):  # an error if it cannot
        first, second = (both_ways(fused, packed, padding) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@needs_cuda
def test_fifty_heads_of_dimension_two_take_a_batch_of_a_thousand() -> None:
    """It once ended in an illegal address."""
    model = transformer12(vocabulary=500, length=64, classes=2).eval()
    batch = torch.randint(0, 500, (1000, 64))
    with torch.no_grad():
        expected = model(batch[:20])
        found = model.cuda()(batch.cuda())
    torch.testing.assert_close(found[:20].cpu(), expected, rtol=1e-3, atol=1e-3)
    model(batch.cuda()).sum().backward()
    torch.cuda.synchronize()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
