"""Counting the FLOPs of a forward or backward pass, whichever kernels would run here.

torch's counter knows products, convolutions and attention in their plain form. So recurrent layers
and attention run through their plain kernels while they are counted: the fused ones are one
operation that the counter takes for nothing. What it knows in no form is counted by formula, and
named: one FLOP for each element that an operation writes, where nothing else was counted (a look-up
of words, a normalisation) or where the operation is not torch's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

# Of torch, and too much work to go unmentioned where other operations were counted.
_HEAVY = ("_fft_", "_cdist", "linalg_", "_linalg_", "_cudnn_rnn", "_lstm_mps", "miopen_rnn")


_SWITCHES = RLock()  # of the whole process: two threads would put back each other's setting


@contextmanager
def plain_kernels(module: nn.Module) -> Iterator[None]:
    """Without fused kernels for the recurrent layers and the attention of a module; on the CPU."""
    with _SWITCHES:
        yield from _switched_off(module)


def _switched_off(module: nn.Module) -> Iterator[None]:
    recurrent = torch._C._get_mkldnn_enabled()
    attention = torch.backends.mha.get_fastpath_enabled()
    # Only where there are such layers: other threads may train meanwhile, and their convolutions
    # would round otherwise. Not `torch.backends.mkldnn.flags`, which sets more, and warns.
    if any(isinstance(part, nn.RNNBase) for part in module.modules()):
        torch._C._set_mkldnn_enabled(False)
    if any(isinstance(part, nn.MultiheadAttention) for part in module.modules()):
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch._C._set_mkldnn_enabled(recurrent)
        torch.backends.mha.set_fastpath_enabled(attention)


def counter() -> FlopCounterMode:
    """torch's own, with formulas that it lacks or has wrong, for all modules together.

    By module it would count with hooks of the whole process, which also run for modules that
    other threads use meanwhile, and fail there.
    """
    mode = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    mode.mod_tracker = _AllTogether()  # type: ignore[assignment]
    return mode


class _AllTogether:
    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


class WrittenElements(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The elements that each operation without a formula writes; views write nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._written: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result: object = func(*args, **(kwargs or {}))
        if func._overloadpacket not in _FORMULAS and func._overloadpacket not in flop_registry:
            fresh = any(r.alias_info is None or r.alias_info.is_write for r in func._schema.returns)
            tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            written = sum(tensor.numel() for tensor in tensors if fresh)
            if written:
                name = func._schema.name
                self._written[name] = self._written.get(name, 0) + written
        return result

    def all(self) -> dict[str, int]:
        """By operation."""
        return self._written

    def unknown(self) -> dict[str, int]:
        """Those of other libraries, and the ones whose work is far from one FLOP per element."""
        return {
            name: written
            for name, written in self._written.items()
            if not name.startswith("aten::") or name.removeprefix("aten::").startswith(_HEAVY)
        }


# Work on windows that is bound by what it reads (seen in benchmarks/step_costs.py): searching one
# for its largest element is scalar code on CPUs, where an element takes as long as a vector full of
# them elsewhere; a convolution in groups uses a number that it has read for one product.
_SEARCHES = ("max_pool2d_with_indices", "max_pool3d_with_indices")
_VECTOR, _NUMBER = 32, 4  # bytes


class MovedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes that all operations read and write; views move nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result: object = func(*args, **(kwargs or {}))
        read, written = _tensors((args, kwargs)), _tensors(result)
        changes = any(r.alias_info and r.alias_info.is_write for r in func._schema.returns)
        name = func._schema.name.removeprefix("aten::")
        if not changes:  # a view has the memory of what it shows
            shown = {tensor.untyped_storage().data_ptr() for tensor in read}
            written = [t for t in written if t.untyped_storage().data_ptr() not in shown]
        if name == "convolution" and args[8] > 1:
            self.total += written[0].numel() * args[1][0].numel() * _NUMBER
        elif name == "convolution_backward" and args[9] > 1:
            self.total += sum(args[10][:2]) * args[0].numel() * args[2][0].numel() * _NUMBER
        if name in _SEARCHES:
            self.total += written[0].numel() * prod(args[1]) * _VECTOR
        elif written and not name.startswith(("empty", "new_empty")):
            moved = written if name.endswith("_like") else [*read, *written]
            self.total += sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in moved)
        return result


class SavedTensors(saved_tensors_hooks):
    """What autograd keeps of a forward pass for the backward pass."""

    def __init__(self) -> None:
        self._saved: list[Tensor] = []
        super().__init__(self._keep, lambda tensor: tensor)

    def _keep(self, tensor: Tensor) -> Tensor:
        self._saved.append(tensor)
        return tensor

    def bytes_beside(self, held: Iterable[Tensor], *, also: Iterable[Tensor]) -> int:
        """Of what was saved, and of others, without those that are held anyway."""
        known = {tensor.untyped_storage().data_ptr() for tensor in held}
        kept = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in (*self._saved, *also)}
        return sum(storage.nbytes() for place, storage in kept.items() if place not in known)


def _tensors(values: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


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


def _trilinear(
    first: Sequence[int],
    second: Sequence[int],
    third: Sequence[int],
    expand_first: Sequence[int],
    expand_second: Sequence[int],
    expand_third: Sequence[int],
    *_: object,
    **__: object,
) -> int:
    """A product of three in a common space (`nn.Bilinear`), of which some dimensions are summed."""
    space: list[int] = []
    expansions = (expand_first, expand_second, expand_third)
    for shape, expanded in zip((first, second, third), expansions, strict=True):
        sizes = list(shape)
        for dim in sorted(expanded):
            sizes.insert(dim, 1)
        space = [max(pair) for pair in zip(space, sizes, strict=True)] if space else sizes
    return 2 * prod(space)


def _matrix_vector(matrix: Sequence[int], *_: object, **__: object) -> int:
    return 2 * prod(matrix)


def _added_matrix_vector(_: object, matrix: Sequence[int], *__: object, **___: object) -> int:
    return 2 * prod(matrix)


_FORMULAS: dict[Any, Any] = {
    torch.ops.aten.convolution_backward: _convolution_backward,
    torch.ops.aten._trilinear: _trilinear,
    torch.ops.aten.mv: _matrix_vector,
    torch.ops.aten.dot: _matrix_vector,
    torch.ops.aten.addmv: _added_matrix_vector,
}
