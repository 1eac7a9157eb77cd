"""Any ``nn.Module`` as a chain of segments, found in its torch.fx graph.

The joints are the points of the graph where one value crosses: inside a residual or a branch two
values cross, so there is none. Parameters and buffers are not values that cross; each segment takes
its own. A piece without a weight matrix (an activation function, a normalisation, a reshape) is not
a block of its own: cutting before it would save neither work nor bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from fedoptima.models.activation import call
from fedoptima.preprocess.tracing import TRACING
from fedoptima.preprocess.user_code import WAY_OUT, CannotTrace, line_of, reason_of

_ROOT = "model."


class GraphSegments:
    """The pieces of a traced model between consecutive points where one value crosses."""

    def __init__(self, model: nn.Module, example: object) -> None:
        """``example``: a batch of what the model takes in."""
        self._root, graph = _trace(model, example)
        self._state = dict(model.state_dict(keep_vars=True))
        self._training = model.training
        # The position of get_attr nodes is irrelevant: a segment fetches what it uses.
        self._nodes = [n for n in graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
        self._input = next(node for node in graph.nodes if node.op == "placeholder")
        self._output = next(node for node in graph.nodes if node.op == "output")
        self._joints = self._find_joints()
        fetched = (n for n in graph.nodes if n.op in ("call_module", "get_attr"))
        held = (self._root.get_attribute(cast(str, n.target)) for n in fetched)
        self._used = {id(tensor) for each in held for _, tensor in _tensors_in(each)}

    def __len__(self) -> int:
        return len(self._joints) - 1

    def name(self, start: int, stop: int) -> str:
        """What the modules of the segment have in common, or else the first of them."""
        paths = self._weighted_paths(start, stop)
        if not paths:
            return str(self._nodes[self._joints[start][0]].name)
        return common_name(paths, set(self._weighted_paths(0, len(self))).difference(paths))

    def after(self, module: str) -> int | None:
        """How many segments come before the joint after a module; None: there is no such joint."""
        inside = [index for index, node in enumerate(self._nodes) if _runs_in(node, module)]
        if not inside:
            return None
        end, count = inside[-1] + 1, len(self._nodes)
        weighted = (i for i in range(end, count) if self._has_weights(self._nodes[i]))
        following = next(weighted, count)  # what has no weights goes with the module before it
        joints = [i for i, (place, _) in enumerate(self._joints) if end <= place <= following]
        return joints[-1] if joints else None

    def _has_weights(self, node: fx.Node) -> bool:
        fetched = [used for used in node.all_input_nodes if used.op == "get_attr"]
        used = [node, *fetched] if node.op == "call_module" else fetched
        return any(self._weight_matrices(cast(str, each.target)) for each in used)

    def _weight_matrices(self, target: str) -> bool:
        found = self._root.get_attribute(target)
        weights = found.parameters() if isinstance(found, nn.Module) else (found,)
        return any(isinstance(w, nn.Parameter) and w.dim() > 1 for w in weights)

    def may_cross(self, value: object) -> bool:
        return isinstance(value, Tensor)

    def may_stand_alone(self, part: nn.Module) -> bool:
        return any(parameter.dim() > 1 for parameter in part.parameters())

    def part(self, start: int, stop: int) -> nn.Module:
        """The segments as one GraphModule, its tensors under the whole model's names."""
        (first, entering), (last, leaving) = self._joints[start], self._joints[stop]
        graph = fx.Graph()
        copies = {entering: graph.placeholder("activation")}
        attributes: dict[str, object] = {}

        def copied(node: fx.Node) -> fx.Node:
            if node not in copies:
                copies[node] = graph.node_copy(node, copied)
                if node.op in ("call_module", "get_attr"):
                    target = cast(str, node.target)
                    copies[node].target = target.removeprefix(_ROOT)
                    attributes[target.removeprefix(_ROOT)] = self._root.get_attribute(target)
            return copies[node]

        for node in self._nodes[first:last]:
            copied(node)
        for name in self._beside(attributes, last=stop == len(self)):
            attributes[name] = self._state[name]
            graph.create_node("get_attr", name)  # or a copy of the part would not have it
        result = self._output.args[0] if leaving is self._output else leaving
        graph.output(fx.map_arg(result, copied))
        part = Part(attributes, graph)
        part.training = self._training
        part.keep_in_state(frozenset(self._state))
        return part

    def _beside(self, attributes: Mapping[str, object], *, last: bool) -> Sequence[str]:
        """Second names of what a part holds; with the end, what the forward never uses."""
        held = {
            f"{path}.{name}" if name else path: tensor
            for path, each in attributes.items()
            for name, tensor in _tensors_in(each)
        }
        own = {id(tensor) for tensor in held.values()}
        return [
            name
            for name, tensor in self._state.items()
            if name not in held
            and isinstance(tensor, Tensor)
            and (id(tensor) in own or (last and id(tensor) not in self._used))
        ]

    def _find_joints(self) -> list[tuple[int, fx.Node]]:
        """(number of nodes before the joint, the node whose value crosses it), ends included."""
        position = {node: index for index, node in enumerate(self._nodes)}
        position[self._output] = len(self._nodes)
        last_use = {
            node: max((position[user] for user in node.users), default=-1)
            for node in (self._input, *self._nodes)
        }
        joints: list[tuple[int, fx.Node]] = [(0, self._input)]
        crossing: set[fx.Node] = {self._input}
        for index, node in enumerate(self._nodes):
            crossing = {n for n in (*crossing, node) if last_use[n] > index}
            if len(crossing) == 1 and index + 1 < len(self._nodes):
                joints.append((index + 1, next(iter(crossing))))
        joints.append((len(self._nodes), self._output))
        return joints

    def _weighted_paths(self, start: int, stop: int) -> Sequence[str]:
        """Names of the modules and parameters with weight matrices, in order of use."""
        return [
            cast(str, used.target).removeprefix(_ROOT)
            for node in self._nodes[self._joints[start][0] : self._joints[stop][0]]
            for used in (node, *node.all_input_nodes)
            if used.op in ("call_module", "get_attr")
            and self._weight_matrices(cast(str, used.target))
        ]


def common_name(paths: Iterable[str], others: Iterable[str]) -> str:
    """What modules have in common, if none of the others has it, or else the first of them."""
    paths = list(dict.fromkeys(paths))
    common = paths[0]
    while common and not all(is_under(path, common) for path in paths):
        common = common.rpartition(".")[0]
    ambiguous = any(is_under(path, common) for path in others)
    return common if common and not ambiguous else paths[0]


def _tensors_in(held: object) -> Iterable[tuple[str, object]]:
    """What a node of the graph takes from the model: of a module all, or the value itself."""
    return held.state_dict(keep_vars=True).items() if isinstance(held, nn.Module) else [("", held)]


def _runs_in(node: fx.Node, module: str) -> bool:
    entries = node.meta.get("nn_module_stack", {}).values()
    return any(str(entry[0]).partition("@")[0] == _ROOT + module for entry in entries)


def is_under(path: str, module: str) -> bool:
    return f"{path}.".startswith(f"{module}.")


class Part(fx.GraphModule):
    """A GraphModule whose state is only what the whole model's state has."""

    one_value = True  # also of several inputs

    def keep_in_state(self, names: frozenset[str]) -> None:
        # fx turns every tensor a graph fetches into a saved buffer; constants and buffers that the
        # model does not save must not be sent or merged either.
        for path in set(self.state_dict()) - names:
            owner, _, field = path.rpartition(".")
            self.get_submodule(owner)._non_persistent_buffers_set.add(field)

    def __deepcopy__(self, memo: dict[int, object]) -> fx.GraphModule:
        copy = super().__deepcopy__(memo)
        assert isinstance(copy, Part)
        copy.keep_in_state(frozenset(self.state_dict()))
        return copy


class _OneInput(nn.Module):
    """Calls the model with its inputs, so that other arguments keep their defaults.

    Several inputs come as one value: the graph takes them apart.
    """

    one_value = True

    def __init__(self, model: nn.Module, example: object) -> None:
        super().__init__()
        self.model = model
        self._names = list(example) if isinstance(example, dict) else None
        self._count = len(example) if isinstance(example, tuple) else None

    def forward(self, value: Any) -> object:
        if self._names is not None:
            value = {name: value[name] for name in self._names}
        elif self._count is not None:
            value = tuple(value[index] for index in range(self._count))
        return call(self.model, value)

    def get_attribute(self, target: str) -> object:
        found: object = self
        for name in target.split("."):
            found = getattr(found, name)
        return found


class _Tracer(fx.Tracer):
    """Looks inside the model itself even where its class is one of torch's own.

    While fx traces, every module of the process calls its tracer; those of other threads (a server
    that trains while its evaluation cuts the model) are let through.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = get_ident()

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        whole = f"{module_qualified_name}." == _ROOT
        return not whole and super().is_leaf_module(m, module_qualified_name)


def _trace(model: nn.Module, example: object) -> tuple[_OneInput, fx.Graph]:
    """Trace in both modes: a graph holds the value ``self.training`` had when it was traced."""
    with TRACING:  # also because it changes the mode of the model
        return _traced(model, example)


def _traced(model: nn.Module, example: object) -> tuple[_OneInput, fx.Graph]:
    modes = {module: module.training for module in model.modules()}
    # The forward may write there. Not all can be written to: an expanded one cannot.
    buffers = [(buffer, buffer._version, buffer.clone()) for buffer in model.buffers()]
    # Two roots, because a tracer leaves the constants it meets on its root.
    evaluating, training = _OneInput(model, example), _OneInput(model, example)
    try:
        evaluated = _Tracer().trace(evaluating.eval())
        trained = _Tracer().trace(training.train())
    except Exception as error:  # fx runs the user's forward, which may raise anything
        raise CannotTrace(
            f"model {type(model).__name__}: torch.fx cannot trace it ({reason_of(error)})"
            f"{line_of(error)}; {WAY_OUT}"
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for buffer, version, value in buffers:
                if buffer._version != version:
                    buffer.copy_(value)
    if str(evaluated) != str(trained):
        raise CannotTrace(
            f"model {type(model).__name__}: its forward reads self.training, which a traced part "
            f"cannot follow; use modules such as nn.Dropout for that; {WAY_OUT}"
        )
    return training, trained
