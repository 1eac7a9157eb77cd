"""Cutting behind a module that the user names, where no graph of the model can be made.

Both sides run the model's own forward. The device stops it behind the named module. The server
starts it with stand-ins: rows of the example go in, modules before the cut do not compute but
return what they return for those rows, and the named module returns what was received. So what
comes after it may depend on the data through the named module alone; that is tried out. What
depends on the values of the data (lengths, packed sequences) may be used freely before the cut.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from threading import RLock
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedoptima.models.activation import call, is_activation, map_tensors, samples_in, tensors_of
from fedoptima.preprocess.division import Division, Side, refused

_SIZES_KEPT = 8  # of batches for which stand-ins are kept


class StandInSegments:
    """Two segments: what runs until the module ``at`` has returned, and the rest."""

    def __init__(self, model: nn.Module, example: object, at: str) -> None:
        self._model, self._at = model, at
        division = Division(model, example, at)
        device = division.skeleton(Side.DEVICE, lambda _: _Absent())
        _stop_behind(device, at)
        self._device: _DeviceSide = _as_part(device, _DeviceSide)
        self._device.wire = _wire(self._device, example, at)
        used, others = _used(
            self._server_side(division, example),
            call(deepcopy(self._device).eval(), example),
            self._device.wire,
        )
        # Integers (the order of a packed sequence) are sent only if it does not work without.
        for wire in [used, used + others] if used and others else [used + others]:
            self._device.wire = wire
            works = self._works(division, example)
            if works:
                break
        if not works:
            raise refused(
                at,
                "what comes after it also uses values that were computed before it; name a module "
                "further on",
            )
        self._server = self._server_side(division, example)
        self._device.training = self._server.training = model.training

    def __len__(self) -> int:
        return 2

    def name(self, start: int, stop: int) -> str:
        return self._at if (start, stop) == (0, 1) else f"after {self._at}"

    def after(self, module: str) -> int | None:
        return 1 if module == self._at else None

    def part(self, start: int, stop: int) -> nn.Module:
        if stop - start == len(self):
            return self._model
        return self._device if start == 0 else self._server

    def may_cross(self, value: object) -> bool:
        return is_activation(value)

    def may_stand_alone(self, part: nn.Module) -> bool:
        return any(True for _ in part.parameters())

    def _server_side(self, division: Division, example: object) -> _ServerSide:
        desk = _Desk()
        server = division.skeleton(Side.SERVER, lambda path: _StandIn(path, desk))
        part: _ServerSide = _as_part(server, _ServerSide)
        part.desk = desk
        part.stand_ins = _StandIns(self._device, example, division.device_modules, self._at)
        return part

    def _works(self, division: Division, example: object) -> bool:
        """With stand-ins of other samples the result must be the same."""
        other = map_tensors(example, lambda tensor: tensor.roll(1, 0))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            expected = call(deepcopy(self._model).eval(), example)
            crossing = call(deepcopy(self._device).eval(), example)
            result = call(deepcopy(self._server_side(division, other)).eval(), crossing)
        return (
            isinstance(expected, Tensor)
            and isinstance(result, Tensor)
            and torch.allclose(expected, result)
        )


class _Leaf(NamedTuple):
    """A tensor of the named module's output that is sent."""

    number: int
    batch: int  # its dimension


class _Reached(Exception):
    def __init__(self, output: object) -> None:
        super().__init__("the named module has returned")
        self.output = output


class _DeviceSide(nn.Module):
    """Runs the model's forward until the named module has returned."""

    one_value = True
    wire: list[_Leaf]

    def forward(self, value: object) -> object:
        leaves, _ = tree_flatten(self.output_for(value))
        sent = tuple(leaves[leaf.number].movedim(leaf.batch, 0) for leaf in self.wire)
        return sent[0] if len(sent) == 1 else sent

    def output_for(self, value: object) -> object:
        """Of the named module."""
        try:
            _run(super().forward, value)
        except _Reached as reached:
            return reached.output
        raise RuntimeError("the forward ended before it has called the named module")


class _ServerSide(nn.Module):
    """Runs the model's forward with stand-ins for what comes before the named module's output."""

    one_value = True
    desk: _Desk
    stand_ins: _StandIns

    def forward(self, value: object) -> object:
        received = tensors_of(value)
        inputs, outputs = self.stand_ins.of(len(received[0]), received)
        self.desk.lay_out(outputs)
        try:
            return _run(super().forward, inputs)
        finally:
            self.desk.lay_out({})


class _Desk:
    """The outputs that stand-ins return next."""

    def __init__(self) -> None:
        self._outputs: dict[str, list[object]] = {}

    def lay_out(self, outputs: dict[str, list[object]]) -> None:
        self._outputs = {path: list(calls) for path, calls in outputs.items()}

    def next(self, path: str) -> object:
        return self._outputs[path].pop(0)


class _StandIn(nn.Module):
    def __init__(self, path: str, desk: _Desk) -> None:
        super().__init__()
        self._path, self._desk = path, desk

    def forward(self, *_: object, **__: object) -> object:
        return self._desk.next(self._path)


class _Absent(nn.Module):
    """Stands where the other side has a module, and is never called."""


class _StandIns:
    """What the modules before the cut return for the example, in batches of any size.

    They are computed with the first weights, once for each size. Copies of a part share them.
    """

    def __init__(self, device: _DeviceSide, example: object, modules: list[str], at: str) -> None:
        self._device, self._wire = deepcopy(device).eval(), list(device.wire)
        self._example, self._at = example, at
        self._outputs: dict[str, list[object]] = {}
        for path in modules:
            if path != at:
                self._device.get_submodule(path).register_forward_hook(self._note(path))
        self._known: dict[tuple[int, torch.device], tuple[object, dict[str, list[object]]]] = {}
        self._lock = RLock()

    def __deepcopy__(self, memo: object) -> _StandIns:
        return self

    def of(self, rows: int, received: tuple[Tensor, ...]) -> tuple[object, dict[str, list[object]]]:
        """The inputs, and the outputs of each module call; what was received is among them."""
        key = (rows, received[0].device)
        with self._lock:
            if key not in self._known:
                if len(self._known) >= _SIZES_KEPT:
                    del self._known[next(iter(self._known))]
                self._known[key] = self._compute(*key)
            inputs, outputs = self._known[key]
        (own,) = outputs[self._at]
        leaves, form = tree_flatten(own)
        for (number, batch), tensor in zip(self._wire, received, strict=True):
            leaves[number] = tensor.clone().movedim(0, batch)  # which may be written into
        return inputs, outputs | {self._at: [tree_unflatten(leaves, form)]}

    def _compute(self, rows: int, where: torch.device) -> tuple[object, dict[str, list[object]]]:
        take = torch.arange(rows) % samples_in(self._example)
        inputs = map_tensors(self._example, lambda tensor: tensor[take])
        self._outputs = {}
        # Nobody's training and nobody's work: neither counted nor differentiated.
        with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
            output = self._device.output_for(inputs)
        made = self._outputs | {self._at: [output]}
        moved = tree_map(lambda v: v.to(where) if hasattr(v, "to") else v, (inputs, made))
        return cast(tuple[object, dict[str, list[object]]], moved)

    def _note(self, path: str) -> Callable[..., None]:
        def note(_: nn.Module, __: object, output: object) -> None:
            self._outputs.setdefault(path, []).append(output)

        return note


def _run(forward: Callable[..., object], value: object) -> object:
    if isinstance(value, dict):
        return forward(**value)
    return forward(*value) if isinstance(value, tuple) else forward(value)


def _as_part(skeleton: nn.Module, kind: type[Any]) -> Any:
    """The same module with another forward in front of its own."""
    skeleton.__class__ = type(kind.__name__, (kind, type(skeleton)), {})
    return skeleton


def _stop_behind(device: nn.Module, at: str) -> None:
    device.get_submodule(at).register_forward_hook(_reached)


def _reached(_: nn.Module, __: object, output: object) -> None:
    raise _Reached(output)


def _wire(device: _DeviceSide, example: object, at: str) -> list[_Leaf]:
    """The tensors of the module's output of which one dimension is the batch."""
    two, three = (_shapes(device, example, rows) for rows in (2, 3))
    found = []
    for number, (small, large) in enumerate(zip(two, three, strict=True)):
        grown = [d for d, (a, b) in enumerate(zip(small, large, strict=False)) if a != b]
        if len(grown) == 1 and (small[grown[0]], large[grown[0]]) == (2, 3):
            found.append(_Leaf(number, grown[0]))
    if not found:
        raise refused(
            at, "no tensor of its output has the samples in one dimension; name another one"
        )
    return found


def _shapes(device: _DeviceSide, example: object, rows: int) -> list[tuple[int, ...]]:
    """Of all that the named module returns; () for what is not a tensor."""
    take = torch.arange(rows) % samples_in(example)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        inputs = map_tensors(example, lambda tensor: tensor[take])
        leaves, _ = tree_flatten(deepcopy(device).eval().output_for(inputs))
    return [tuple(leaf.shape) if isinstance(leaf, Tensor) else () for leaf in leaves]


def _used(
    server: _ServerSide, crossing: object, wire: list[_Leaf]
) -> tuple[list[_Leaf], list[_Leaf]]:
    """Those that the server side differentiates by, and those of which that cannot be told."""
    entering = [
        tensor.detach().requires_grad_(tensor.is_floating_point())
        for tensor in tensors_of(crossing)
    ]
    floating = [tensor for tensor in entering if tensor.requires_grad]
    if not floating:
        return [], wire
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        output = call(deepcopy(server).eval(), tuple(entering))
        total = cast(Tensor, sum(tensor.sum() for tensor in tensors_of(output)))
        found = iter(torch.autograd.grad(total, floating, allow_unused=True))
    used, others = [], []
    for leaf, tensor in zip(wire, entering, strict=True):
        if not tensor.requires_grad:
            others.append(leaf)
        elif next(found) is not None:
            used.append(leaf)
    return used, others
