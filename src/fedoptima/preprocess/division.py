"""Which modules and tensors of a model are used before a named module returns, and which after.

Found by running the model on an example. Modules that only hold others (the model itself, a list)
are divided; every other module belongs to one side as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from fedoptima.models.activation import call
from fedoptima.preprocess.graph import is_under
from fedoptima.preprocess.split import METHODS_WITHOUT_SPLIT
from fedoptima.preprocess.user_code import CannotTrace


class Side(Enum):
    DEVICE = "device"  # until the named module has returned
    SERVER = "server"


def refused(at: str, why: str) -> CannotTrace:
    return CannotTrace(
        f"split.at = {at!r}: the model cannot be cut after this module: {why}, or use a method "
        f"that does not split the model: {', '.join(METHODS_WITHOUT_SPLIT)}"
    )


class Division:
    def __init__(self, model: nn.Module, example: object, at: str) -> None:
        self._model, self._at = model, at
        watched = _Watch(deepcopy(model).eval(), at)
        with torch.no_grad(), torch.random.fork_rng(devices=[]), watched:
            call(watched.model, example)
        if not watched.over:
            raise refused(at, "the forward does not call it; name another one")
        self._calls, self._uses = watched.calls, watched.uses
        self._opened: set[str] = set()
        self._sides: dict[str, Side] = {}  # of modules that belong to one as a whole
        self._tensors: dict[str, set[Side]] = {}  # of those that are divided
        self._divide(model, "")

    @property
    def device_modules(self) -> list[str]:
        """Those that run on the device as a whole."""
        return [path for path, side in self._sides.items() if side is Side.DEVICE]

    def skeleton(self, side: Side, other: Callable[[str], nn.Module]) -> nn.Module:
        """The model with what belongs to a side, and ``other(path)`` for each other module.

        Modules of the side are shared with the model.
        """
        return self._skeleton(self._model, "", side, other)

    def _divide(self, module: nn.Module, path: str) -> None:
        self._opened.add(path)
        for name in (*module._parameters, *module._buffers):
            uses = self._uses.get(_join(path, name), set()) or {Side.SERVER}
            saved = name not in module._non_persistent_buffers_set
            if len(uses) > 1 and saved:
                raise refused(self._at, f"both sides use {_join(path, name)!r}; name another one")
            self._tensors[_join(path, name)] = uses
        for name, child in module._modules.items():
            if child is None:
                continue
            inside = _join(path, name)
            calls = {s for p, sides in self._calls.items() if is_under(p, inside) for s in sides}
            if self._at != inside and is_under(self._at, inside):
                self._divide(child, inside)
            elif len(calls) < 2:
                self._sides[inside] = Side.DEVICE if Side.DEVICE in calls else Side.SERVER
            elif inside in self._calls:
                raise refused(self._at, f"both sides use {inside!r}; name another one")
            else:
                self._divide(child, inside)

    def _skeleton(
        self, module: nn.Module, path: str, side: Side, other: Callable[[str], nn.Module]
    ) -> nn.Module:
        copy = _shallow(module)
        for name, child in module._modules.items():
            inside = _join(path, name)
            if child is None:
                continue
            if inside in self._opened:
                copy._modules[name] = self._skeleton(child, inside, side, other)
            elif self._sides[inside] is not side:
                copy._modules[name] = other(inside)
            elif inside == self._at:
                copy._modules[name] = _shallow(child)  # it gets a hook
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and side not in self._tensors[_join(path, name)]:
                copy._parameters.pop(name, None)
                # It is read before the cut, where values do not matter.
                copy._buffers[name] = tensor.detach().clone()
                copy._non_persistent_buffers_set.add(name)
        return copy


def _shallow(module: nn.Module) -> nn.Module:
    copy: nn.Module = object.__new__(type(module))
    copy.__dict__.update(module.__dict__)
    for held in ("_parameters", "_buffers", "_modules", "_forward_hooks"):
        copy.__dict__[held] = module.__dict__[held].copy()
    copy.__dict__["_non_persistent_buffers_set"] = set(module._non_persistent_buffers_set)
    return copy


class _Watch(TorchFunctionMode):
    """Sees which modules are called and which tensors are used, before and after."""

    def __init__(self, model: nn.Module, at: str) -> None:
        super().__init__()
        self.model, self.over = model, False
        self.calls: dict[str, set[Side]] = {}
        self.uses: dict[str, set[Side]] = {}
        tensors: Iterator[tuple[str, Tensor]] = iter(
            [*model.named_parameters(), *model.named_buffers()]
        )
        self._names = {id(tensor): name for name, tensor in tensors}
        for path, module in model.named_modules():
            ancestor = path == "" or (path != at and is_under(at, path))
            if not ancestor:
                module.register_forward_pre_hook(self._entered(path))
                module.register_forward_hook(self._left(path, path == at))

    @property
    def _side(self) -> Side:
        return Side.SERVER if self.over else Side.DEVICE

    def _entered(self, path: str) -> Callable[..., None]:
        def note(*_: object) -> None:
            self.calls.setdefault(path, set()).add(self._side)

        return note

    def _left(self, path: str, is_cut: bool) -> Callable[..., None]:
        def note(*_: object) -> None:
            self.calls.setdefault(path, set()).add(self._side)
            self.over = self.over or is_cut

        return note

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        for leaf in tree_leaves((args, kwargs)):
            if id(leaf) in self._names:
                self.uses.setdefault(self._names[id(leaf)], set()).add(self._side)
        result: object = func(*args, **(kwargs or {}))
        return result


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
