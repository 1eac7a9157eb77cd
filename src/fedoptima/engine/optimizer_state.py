"""What an optimiser remembers: kept in a checkpoint, set aside for another device, forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedoptima.engine.payloads import Tensors

_PREFIX = "optimizer."  # of the names of its tensors in a checkpoint
_GROUP = "group."  # of the names of what it counts in a group of parameters

Counters = dict[str, int | float]


class OptimizerState:
    """``static``: its tensors stay where they are. ``on_gpu``: it counts its steps there."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[Tensor],
        *,
        static: bool,
        on_gpu: bool,
    ) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._static = static
        self._on_gpu = on_gpu
        self._first = self._counters()

    def begin_anew(self) -> None:
        """As if it had just been made; tensors that were saved are left as they are."""
        self._set_counters(self._first)
        self._optimizer.state.clear()

    def forget(self) -> None:
        if not self._static:
            self.begin_anew()
            return
        self._set_counters(self._first)
        for state in self._optimizer.state.values():
            for value in state.values():
                value.zero_()

    def save(self) -> tuple[dict[str, object], Tensors]:
        """Plain values, and the tensors themselves."""
        plain: dict[str, object] = {
            f"{_GROUP}{index}.{key}": value
            for index, own in enumerate(self._counters())
            for key, value in own.items()
            if value != self._first[index].get(key)
        }
        tensors: Tensors = {}
        for index, parameter in enumerate(self._parameters):
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{_PREFIX}{index}.{key}"] = value
                else:
                    plain[f"{index}.{key}"] = value
        return plain, tensors

    def restore(self, plain: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
        """The tensors are used as they are, unless its own have to stay in their place."""
        if not self._static:
            self._optimizer.state.clear()
        entries = {place: value for place, value in plain.items() if not place.startswith(_GROUP)}
        for name, tensor in tensors.items():
            if name.startswith(_PREFIX):
                # Adam counts its steps on the CPU, so that no step waits for a GPU; a fused one
                # on the GPU.
                counts = name.endswith(".step") and not self._on_gpu
                entries[name.removeprefix(_PREFIX)] = tensor.cpu() if counts else tensor
        for place, entry in entries.items():
            number, key = place.split(".", 1)
            own = self._optimizer.state.setdefault(self._parameters[int(number)], {})
            if self._static and isinstance(entry, Tensor):
                own[key].copy_(entry)
            else:
                own[key] = entry
        counters: list[dict[str, Any]] = [dict(own) for own in self._first]
        for place, count in plain.items():
            if place.startswith(_GROUP):
                group, key = place.removeprefix(_GROUP).split(".", 1)
                counters[int(group)][key] = count
        self._set_counters(counters)

    def _counters(self) -> list[Counters]:
        """The plain numbers of each group besides the rate: some optimisers count their steps
        there, or sum up the weights of an average, and not in the state of a parameter."""
        return [
            {key: value for key, value in group.items() if key != "lr" and _is_number(value)}
            for group in self._optimizer.param_groups
        ]

    def _set_counters(self, counters: Sequence[Mapping[str, Any]]) -> None:
        for group, own in zip(self._optimizer.param_groups, counters, strict=True):
            group.update(own)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
