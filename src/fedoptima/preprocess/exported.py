"""A model as a chain of segments of its exported graphs, one for training and one for evaluation.

The joints are as in a traced graph: between two uses of weight matrices, where one trained value
crosses. Values that no weight has touched (a mask) may cross with it, and behind a module that the
user has named any number of values. Both graphs are cut where the same kinds of tensors cross.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, fx, nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import is_activation, tensors_of
from fedoptima.preprocess.export import exported
from fedoptima.preprocess.flow import Flow, Place
from fedoptima.preprocess.graph import common_name, is_under
from fedoptima.preprocess.user_code import WAY_OUT, CannotTrace

Joint = tuple[Place, Place]  # of the graphs for training and for evaluation


class ExportSegments:
    """``at``: a module after which there is to be a joint, if that is possible."""

    def __init__(self, model: nn.Module, example: object, at: str | None = None) -> None:
        self._model = model
        self._tensors = model.state_dict(keep_vars=True) | dict(model.named_buffers())
        self._saved = frozenset(model.state_dict())
        graphs = exported(model, example)
        self._constants: dict[str, object] = {}
        for graph in graphs:
            self._constants |= graph.constants
        self._flows = tuple(Flow(graph, self._tensor, self._saved) for graph in graphs)
        if self._flows[0].weights != self._flows[1].weights:
            raise CannotTrace(
                f"model {type(model).__name__}: it does not use the same weights in training and "
                f"in evaluation; {WAY_OUT}"
            )
        gaps = range(1, len(self._flows[0].weighted))
        joints = {gap: found for gap in gaps if (found := self._joint(gap))}
        inner = {gap: found for gap, found in joints.items() if self._in_a_row(gap)} or joints
        self._after: int | None = None
        self.hindrance: str | None = None  # why there is no joint after the module
        named = self._named(at) if at is not None else None
        if named is not None:
            gap, joint = named
            inner[gap] = joint
            self._after = 1 + sum(other < gap for other in inner)
        self._joints = [self._end(0), *(inner[gap] for gap in sorted(inner)), self._end(-1)]

    def __len__(self) -> int:
        return len(self._joints) - 1

    def after(self, module: str) -> int | None:
        """How many segments come before the joint after the module that was asked for."""
        return self._after

    def name(self, start: int, stop: int) -> str:
        flow, (first, last) = self._flows[0], self._range(start, stop)
        paths = flow.paths(first, last)
        if not paths:
            return f"step{first}"
        others = set(flow.paths(0, len(flow.nodes))).difference(paths)
        name = common_name(paths, others)
        while (outer := name.rpartition(".")[0]) and not any(is_under(p, outer) for p in others):
            name = outer  # the whole of a user's block, if it is all there
        return name

    def may_cross(self, value: object) -> bool:
        return is_activation(value)

    def may_stand_alone(self, part: nn.Module) -> bool:
        return any(parameter.dim() > 1 for parameter in part.parameters())

    def part(self, start: int, stop: int) -> nn.Module:
        """Both graphs' segments as one module, its tensors under the whole model's names."""
        held: dict[str, object] = {}
        forwards = [
            _Piece(flow, self._joints[start][mode], self._joints[stop][mode], self._tensor, held)
            for mode, flow in enumerate(self._flows)
        ]
        if stop == len(self):  # what the forward never uses is kept with the end
            used = {name for flow in self._flows for name in _fetched(flow)}
            others = {name: self._tensors[name] for name in self._saved - used}
            held |= {name: others[name] for name in self._tensors if name in others}
        for name, tensor in self._tensors.items():  # a tensor with two names keeps both
            if any(tensor is other for other in held.values()):
                held.setdefault(name, tensor)
        part = ExportedPart(forwards[0].compiled(), forwards[1].compiled(), self._keys(start))
        order = {name: place for place, name in enumerate(self._tensors)}
        for name in sorted(held, key=lambda name: order.get(name, len(order))):
            part.hold(name, held[name], saved=name in self._saved)
        first, last = self._range(start, stop)
        paths = self._flows[0].modules(first, last)
        part._exported_layers = Layers(map(self._model.get_submodule, paths))
        part.training = self._model.training
        return part

    def _keys(self, start: int) -> tuple[str, ...]:
        return self._flows[0].exported.keys if start == 0 else ()

    def _range(self, start: int, stop: int) -> tuple[int, int]:
        return self._joints[start][0].position, self._joints[stop][0].position

    def _tensor(self, name: str) -> object:
        if name in self._constants:
            return self._constants[name]
        found = self._tensors.get(name)
        return self._model.get_parameter(name) if found is None else found

    def _end(self, index: int) -> Joint:
        first, second = (
            Place(0, flow.exported.inputs)
            if index == 0
            else Place(len(flow.nodes), (cast(fx.Node, flow.output.args[0]),))
            for flow in self._flows
        )
        return first, second

    def _joint(self, gap: int) -> Joint | None:
        """After so many uses of weights; None: no single value crosses anywhere there."""
        return self._cheapest(
            [(flow.weighted[gap - 1] + 1, flow.weighted[gap]) for flow in self._flows],
            several=False,
        )

    def _in_a_row(self, gap: int) -> bool:
        """Whether the modules before and after run in a row that somebody has written as one.

        They are parts of modules with a list of blocks inside. An attention or an embedding is
        one thing, although its parts run in a row as well.
        """
        flow = self._flows[0]
        return flow.around(gap) <= self._rows_of_blocks

    @cached_property
    def _rows_of_blocks(self) -> frozenset[str]:
        lists = (nn.Sequential, nn.ModuleList)
        return frozenset(
            name
            for name, module in self._model.named_modules()
            if any(isinstance(inside, lists) and len(inside) > 1 for inside in module.modules())
        )

    def _named(self, module: str) -> tuple[int, Joint] | None:
        """The joint behind a module, and how many uses of weights come before it."""
        ends = [flow.end_of(module) for flow in self._flows]
        if None in ends:
            return None
        found = [cast(int, end) for end in ends]
        before = [
            sum(i < end for i in f.weighted) for f, end in zip(self._flows, found, strict=True)
        ]
        gap = before[0]
        if before[0] != before[1] or not 0 < gap < len(self._flows[0].weighted):
            return None
        limits = [(end, flow.weighted[gap]) for flow, end in zip(self._flows, found, strict=True)]
        joint = self._cheapest(limits, several=True)
        if joint is None:
            self.hindrance = self._flows[0].hindrance(found[0])
        return None if joint is None else (gap, joint)

    def _cheapest(self, limits: list[tuple[int, int]], *, several: bool) -> Joint | None:
        """Where the fewest bytes cross between the limits of each graph; the last such place."""
        training, evaluation = (
            flow.places(*limit, several=several)
            for flow, limit in zip(self._flows, limits, strict=True)
        )
        both = [place for kinds, place in training.items() if kinds in evaluation]
        if not both:
            return None
        best = min(both, key=lambda place: (place.nbytes, -place.position))
        return best, evaluation[best.kinds]


class Layers(tuple[nn.Module, ...]):
    """The modules that a part was made of, in order, for whoever wants to build one like them."""

    def __deepcopy__(self, memo: object) -> Layers:
        return Layers()


class ExportedPart(nn.Module):
    """Runs one of two graphs, as its mode says, with the tensors that it holds."""

    one_value = True

    def __init__(
        self,
        training: Callable[..., object],
        evaluation: Callable[..., object],
        keys: tuple[str, ...],
    ) -> None:
        super().__init__()
        self._exported_forwards = {True: training, False: evaluation}
        self._exported_keys = keys
        self._exported_layers = Layers()

    def forward(self, value: object) -> object:
        if isinstance(value, dict):
            value = tuple(value[key] for key in self._exported_keys)
        return self._exported_forwards[self.training](self, *tensors_of(value))

    def hold(self, name: str, value: object, *, saved: bool) -> None:
        *owners, field = name.split(".")
        owner: nn.Module = self
        for step in owners:
            if step not in owner._modules:
                owner.add_module(step, nn.Module())
            owner = cast(nn.Module, owner._modules[step])
        if isinstance(value, nn.Parameter):
            owner.register_parameter(field, value)
        elif isinstance(value, Tensor):
            owner.register_buffer(field, value, persistent=saved)
        elif isinstance(value, nn.Module):
            owner.add_module(field, value)
        else:
            raise ConfigError(f"{name}: a {type(value).__name__} cannot be part of a model")


class _Piece:
    """The nodes of a flow from one place to another, as a graph of their own."""

    def __init__(
        self,
        flow: Flow,
        start: Place,
        stop: Place,
        tensor: Callable[[str], object],
        held: dict[str, object],
    ) -> None:
        self._flow, self._tensor, self._held = flow, tensor, held
        self._graph = fx.Graph()
        self._copies = {
            node: self._graph.placeholder(f"value{i}") for i, node in enumerate(start.crossing)
        }
        self._entering = self._copies[start.crossing[0]]
        self._device: fx.Node | None = None
        inside = flow.nodes[start.position : stop.position]
        self._inside = frozenset(inside)
        for node in inside:
            self._copied(node)
        leaving = tuple(map(self._copied, stop.crossing))
        self._graph.output(leaving if len(leaving) > 1 else leaving[0])

    def compiled(self) -> Callable[..., object]:
        # A function of the graph and of whatever holds the tensors.
        attributes = {name: value for name, value in self._held.items()}
        forward = type(fx.GraphModule(attributes, self._graph)).forward
        return cast(Callable[..., object], forward)

    def _copied(self, node: fx.Node) -> fx.Node:
        if node in self._copies:
            return self._copies[node]
        if node.op == "get_attr":
            self._held[str(node.target)] = self._tensor(str(node.target))
            copy = self._graph.get_attr(str(node.target))
        elif self._flow.is_batch_size(node) and node not in self._inside:
            copy = self._graph.call_function(torch.ops.aten.sym_size.int, (self._entering, 0))
        else:
            for used in node.all_input_nodes:
                self._copied(used)
            copy = self._graph.node_copy(node, self._copies.__getitem__)
            copy.args = cast(tuple[fx.node.Argument, ...], self._on_its_device(copy.args))
            copy.kwargs = cast(dict[str, fx.node.Argument], self._on_its_device(copy.kwargs))
        self._copies[node] = copy
        return copy

    def _on_its_device(self, arguments: object) -> object:
        """Tensors are made where those are that come in, not where the example was."""

        def where(argument: object) -> object:
            if not isinstance(argument, torch.device):
                return argument
            if self._device is None:
                with self._graph.inserting_after(self._last_placeholder()):
                    self._device = self._graph.call_function(getattr, (self._entering, "device"))
            return self._device

        return fx.node.map_aggregate(cast(fx.node.Argument, arguments), where)  # type: ignore[arg-type]

    def _last_placeholder(self) -> fx.Node:
        placeholders: list[fx.Node] = self._graph.find_nodes(op="placeholder")
        return placeholders[-1]


def _fetched(flow: Flow) -> set[str]:
    return {
        str(node.target)
        for node in flow.exported.graph.nodes
        if node.op == "get_attr" and node.users
    }
