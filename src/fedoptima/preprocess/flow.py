"""An exported graph as a flow of values through its nodes, and where it can be cut.

Everything that is computed before a place and used after it crosses there, and must be sent:
tensors with the samples first. What depends on no sample and no weight (positions, a batch's size)
does not cross; the other side computes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
from torch import fx, nn

from fedoptima.preprocess.export import BATCH, ROOT, Exported, TensorValue, value_of

Kinds = tuple[tuple[tuple[int, ...], torch.dtype], ...]  # without the batch
_BATCH_SIZE = torch.ops.aten.sym_size.int


@dataclass(frozen=True)
class Place:
    position: int  # nodes before it
    crossing: tuple[fx.Node, ...]  # what a module has made last, first

    @property
    def kinds(self) -> Kinds:
        values = [cast(TensorValue, value_of(node)) for node in self.crossing]
        return tuple((cast(tuple[int, ...], value.shape[1:]), value.dtype) for value in values)

    @property
    def nbytes(self) -> int:
        """Of a sample."""
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self.kinds)


class Flow:
    """``tensor_of``: the model's tensor, or the constant, of a name."""

    def __init__(
        self, exported: Exported, tensor_of: Callable[[str], object], saved: frozenset[str]
    ) -> None:
        self.exported = exported
        graph = exported.graph
        self.nodes = [n for n in graph.nodes if n.op == "call_function"]
        self.output = graph.output_node()
        self._tensor_of = tensor_of
        self._written = {
            argument for node in self.nodes if _writes(node) for argument in node.all_input_nodes
        }
        self._trained: set[fx.Node] = set()
        self._again: set[fx.Node] = set()  # may be computed again on the other side
        for node in graph.nodes:
            if node.op == "get_attr":
                value = tensor_of(str(node.target))
                if isinstance(value, nn.Parameter):
                    self._trained.add(node)
                elif str(node.target) not in saved and node not in self._written:
                    self._again.add(node)
            elif node.op == "call_function":
                if any(used in self._trained for used in node.all_input_nodes):
                    self._trained.add(node)
                if self.is_batch_size(node) or self._repeats(node):
                    self._again.add(node)
        self.weighted = [i for i, node in enumerate(self.nodes) if any(self._weights(node))]
        self._raw = self._data()
        self._places = list(self._crossings())

    @property
    def weights(self) -> list[tuple[str, ...]]:
        """The weight matrices, in order of use."""
        return [tuple(self._weights(self.nodes[index])) for index in self.weighted]

    def paths(self, first: int, last: int) -> list[str]:
        """The modules that hold the weight matrices which these nodes use."""
        names = [name for node in self.nodes[first:last] for name in self._weights(node)]
        return [name.rpartition(".")[0] or name for name in names]

    def modules(self, first: int, last: int) -> list[str]:
        """The modules that run in these nodes as a whole, in the order in which they end."""
        others = (*self.nodes[:first], *self.nodes[last:])
        elsewhere = {path for node in others for path in _stack(node)}
        ended: dict[str, None] = {}
        for node in self.nodes[first:last]:
            for path in reversed(_stack(node)):
                if path not in elsewhere:
                    ended.pop(path, None)
                    ended[path] = None
        return list(ended)

    def places(self, first: int, last: int, *, several: bool) -> dict[Kinds, Place]:
        """Where the flow may be cut from ``first`` to ``last``, the last of each kind.

        ``several``: more than one trained value may cross, as in the branches of a network.
        """
        return {
            place.kinds: place
            for place in self._places[first : last + 1]
            if place.crossing
            and all(map(self._may_be_sent, place.crossing))
            and (several or sum(node in self._trained for node in place.crossing) == 1)
        }

    def hindrance(self, position: int) -> str | None:
        """Why there can be no cut at a place, in words; None: nothing there stands in its way."""
        for node in self._places[position].crossing:
            if node in self._raw or node in self.exported.inputs:
                name = node.name.removeprefix("inputs_")
                return f"what comes after it needs the data themselves ({name}), which never cross"
            if not self._may_be_sent(node):
                value = value_of(node)
                if isinstance(value, TensorValue) and value.dtype.is_complex:
                    return f"a complex tensor would cross ({node.name}), and only real ones may"
                shape = "x".join(map(str, value.shape)) if isinstance(value, TensorValue) else ""
                return f"a tensor without the samples first would cross ({node.name}, {shape})"
        return None

    def around(self, gap: int) -> frozenset[str]:
        """The modules that are running both at the use of weights before a gap and after it."""
        before, after = (self.nodes[self.weighted[use]] for use in (gap - 1, gap))
        return frozenset(_stack(before)).intersection(_stack(after))

    def end_of(self, module: str) -> int | None:
        """The place behind the last node of a module."""
        inside = [i for i, node in enumerate(self.nodes) if module in _stack(node)]
        return inside[-1] + 1 if inside else None

    def is_batch_size(self, node: fx.Node) -> bool:
        return node.target is _BATCH_SIZE and value_of(node) == BATCH

    def _repeats(self, node: fx.Node) -> bool:
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        return (
            all(used in self._again for used in node.all_input_nodes)
            and node not in self._written
            and not random
        )

    def _weights(self, node: fx.Node) -> Iterator[str]:
        for used in node.all_input_nodes:
            value = self._tensor_of(str(used.target)) if used.op == "get_attr" else None
            if isinstance(value, nn.Parameter) and value.dim() > 1:
                yield str(used.target)

    def _data(self) -> frozenset[fx.Node]:
        """Values that no weight has touched and that are still to be multiplied with weights.

        They are the data themselves, and never leave the device. A mask is used otherwise.
        """
        weighted = {self.nodes[index] for index in self.weighted}
        found: set[fx.Node] = set()
        for node in reversed((*self.exported.inputs, *self.nodes)):
            if node not in self._trained and any(u in weighted or u in found for u in node.users):
                found.add(node)
        return frozenset(found)

    def _may_be_sent(self, node: fx.Node) -> bool:
        value = value_of(node)
        if not isinstance(value, TensorValue) or not value.shape or node in self._raw:
            return False
        first, *others = value.shape
        sized = first == BATCH and all(isinstance(size, int) for size in others)
        return sized and not value.dtype.is_complex

    def _crossings(self) -> Iterator[Place]:
        """Of every place, from before the first node to behind the last."""
        position = {node: index for index, node in enumerate(self.nodes)}
        position[self.output] = len(self.nodes)
        last_use = {
            node: max((position[user] for user in node.users), default=-1)
            for node in (*self.exported.inputs, *self.nodes)
        }
        open_values = list(self.exported.inputs)
        for index in range(len(self.nodes) + 1):
            if index:
                open_values.append(self.nodes[index - 1])
            open_values = [node for node in open_values if last_use[node] >= index]
            crossing = [node for node in open_values if node not in self._again]
            crossing.sort(key=lambda n: (n in self._trained, position.get(n, -1)), reverse=True)
            yield Place(index, tuple(crossing))


def _writes(node: fx.Node) -> bool:
    schema: Any = getattr(node.target, "_schema", None)
    # `detach_` is what torch.tensor(...) in a forward becomes, and changes no value.
    return schema is not None and schema.is_mutable and schema.name != "aten::detach_"


def _stack(node: fx.Node) -> list[str]:
    """The modules that a node is in, outermost first."""
    entries = node.meta.get("nn_module_stack", {}).values()
    paths = [str(entry[0]).partition("@")[0] for entry in entries]
    return [path.removeprefix(ROOT) for path in paths if path.startswith(ROOT)]
