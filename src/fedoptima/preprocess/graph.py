"""Any ``nn.Module`` as a chain of segments, found in its torch.fx graph.

The joints are the points of the graph where one value crosses: inside a residual or a branch two
values cross, so there is none. Parameters and buffers are not values that cross; each segment takes
its own. A piece without a weight matrix (an activation function, a normalisation, a reshape) is not
a block of its own: cutting before it would save neither work nor bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, fx, nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import call

_ROOT = "model."


class GraphSegments:
    """The pieces of a traced model between consecutive points where one value crosses."""

    def __init__(self, model: nn.Module, example: object) -> None:
        """``example``: a batch of what the model takes in."""
        self._root, graph = _trace(model, example)
        self._state_names = frozenset(model.state_dict())
        self._training = model.training
        # The position of get_attr nodes is irrelevant: a segment fetches what it uses.
        self._nodes = [n for n in graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
        self._input = next(node for node in graph.nodes if node.op == "placeholder")
        self._output = next(node for node in graph.nodes if node.op == "output")
        self._joints = self._find_joints()

    def __len__(self) -> int:
        return len(self._joints) - 1

    def name(self, start: int, stop: int) -> str:
        """What the modules of the segment have in common, or else the first of them."""
        paths = list(dict.fromkeys(self._weighted_paths(start, stop)))
        if not paths:
            return str(self._nodes[self._joints[start][0]].name)
        common = paths[0]
        while common and not all(_is_under(path, common) for path in paths):
            common = common.rpartition(".")[0]
        others = set(self._weighted_paths(0, len(self))).difference(paths)
        ambiguous = any(_is_under(path, common) for path in others)
        return common if common and not ambiguous else paths[0]

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
        result = self._output.args[0] if leaving is self._output else leaving
        graph.output(fx.map_arg(result, copied))
        part = Part(attributes, graph)
        part.training = self._training
        part.keep_in_state(self._state_names)
        return part

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
        paths: list[str] = []
        for node in self._nodes[self._joints[start][0] : self._joints[stop][0]]:
            for used in (node, *node.all_input_nodes):
                if used.op not in ("call_module", "get_attr"):
                    continue
                target = cast(str, used.target)
                found = self._root.get_attribute(target)
                weights = found.parameters() if isinstance(found, nn.Module) else (found,)
                if any(isinstance(w, nn.Parameter) and w.dim() > 1 for w in weights):
                    paths.append(target.removeprefix(_ROOT))
        return paths


def _is_under(path: str, module: str) -> bool:
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
    """Looks inside the model itself even where its class is one of torch's own."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        whole = f"{module_qualified_name}." == _ROOT
        return not whole and super().is_leaf_module(m, module_qualified_name)


def _trace(model: nn.Module, example: object) -> tuple[_OneInput, fx.Graph]:
    """Trace in both modes: a graph holds the value ``self.training`` had when it was traced."""
    modes = {module: module.training for module in model.modules()}
    # Two roots, because a tracer leaves the constants it meets on its root.
    evaluating, training = _OneInput(model, example), _OneInput(model, example)
    way_out = (
        "write it as an nn.Sequential of blocks, or use a method that does not split the model"
    )
    try:
        evaluated = _Tracer().trace(evaluating.eval())
        trained = _Tracer().trace(training.train())
    except Exception as error:  # fx runs the user's forward, which may raise anything
        raise ConfigError(
            f"model {type(model).__name__}: torch.fx cannot trace it "
            f"({type(error).__name__}: {error}); {way_out}"
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    if str(evaluated) != str(trained):
        raise ConfigError(
            f"model {type(model).__name__}: its forward reads self.training, which a traced part "
            f"cannot follow; use modules such as nn.Dropout for that, or {way_out}"
        )
    return training, trained
