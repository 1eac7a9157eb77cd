"""What ``torch.export`` makes of a model that torch.fx cannot trace: one graph for each mode.

A graph holds the value that ``self.training`` had, so there is one of the model in training and one
of it in evaluation, over the same tensors. The batch is a symbol in both. It takes seconds, so what
was made is kept as long as the model lives.

Nothing symbolic is kept: while one thread exports, torch traces the arithmetic with symbols of
every thread, and an export of another node would run into a comparison of sizes here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import call, map_tensors, tensors_of
from fedoptima.preprocess.quiet_torch import quiet_torch
from fedoptima.preprocess.tracing import TRACING
from fedoptima.preprocess.user_code import WAY_OUT, CannotTrace, line_of, reason_of

ROOT = "model."  # of the tensors' names: the model is a part of what is exported
MODES = (True, False)  # training, evaluation
BATCH = "batch"  # in a shape: as many as there are samples

_VALUE = "fedoptima_value"  # what a node computes, in its meta


@dataclass(frozen=True)
class TensorValue:
    """What is known of a tensor in a graph."""

    shape: tuple[int | str, ...]  # a word where the size depends on the batch
    dtype: torch.dtype


Value = TensorValue | int | str | None  # a tensor, a size, or something else


@dataclass(frozen=True)
class Exported:
    """A graph of one mode; the model's tensors are ``get_attr`` nodes with the model's names."""

    graph: fx.Graph
    inputs: tuple[fx.Node, ...]  # what the model takes in
    keys: tuple[str, ...]  # their names, where the inputs are a mapping
    constants: Mapping[str, object]  # by name: tensors and modules that the model does not hold


def value_of(node: fx.Node) -> Value:
    """What a node of an exported graph computes."""
    return cast(Value, node.meta.get(_VALUE))


Both = tuple[Exported, Exported]
_made: WeakKeyDictionary[nn.Module, dict[object, Both | str]] = WeakKeyDictionary()


def exported(model: nn.Module, example: object) -> Both:
    """The graphs of ``model`` in training and in evaluation, for inputs like ``example``."""
    kind = _kind(example)
    with TRACING:
        known = _made.setdefault(model, {})
        if kind not in known:
            try:
                known[kind] = _export_both(model, example)
            except CannotTrace as error:  # that takes as long
                known[kind] = str(error)
                raise
        found = known[kind]
    if isinstance(found, str):
        raise CannotTrace(found)
    return found


class Whole(nn.Module):
    """A model that takes a batch's inputs as one value."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: object) -> object:
        return call(self.model, inputs)


def _kind(example: object) -> object:
    names = tuple(example) if isinstance(example, dict) else ()
    return names, tuple((tensor.shape[1:], tensor.dtype) for tensor in tensors_of(example))


def _export_both(model: nn.Module, example: object) -> Both:
    # A copy: exporting leaves its traces in some modules, and the mode is changed.
    copy = deepcopy(model)
    example = map_tensors(example, _enough_rows)
    try:
        with warnings.catch_warnings(), quiet_torch(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            try:
                training, evaluation = (_export(copy, mode, example, False) for mode in MODES)
            except Exception as first:
                # By reading the code instead of running it: takes longer, but len(batch) may be
                # a symbol. What is wrong with a model is said better by running it.
                try:
                    training, evaluation = (_export(copy, mode, example, True) for mode in MODES)
                except Exception:
                    raise first from None
    except Exception as error:  # it runs the user's forward, which may raise anything
        raise CannotTrace(
            f"model {type(model).__name__}: its forward cannot be followed by torch.fx or "
            f"torch.export ({reason_of(error)}){line_of(error)}; {WAY_OUT}"
        ) from error
    return training, evaluation


def _enough_rows(tensor: Tensor) -> Tensor:
    """A batch of 1 or 0 would be taken for a constant."""
    return tensor[torch.arange(3) % len(tensor)].clone()


def _export(model: nn.Module, training: bool, example: object, strict: bool) -> Exported:
    rows: Any = {0: torch.export.Dim("batch")}
    program = torch.export.export(
        Whole(model).train(training),
        (example,),
        dynamic_shapes={"inputs": map_tensors(example, lambda _: rows)},
        strict=strict,
    )
    return _with_names(program, training, tuple(example) if isinstance(example, dict) else ())


def _with_names(program: Any, training: bool, keys: tuple[str, ...]) -> Exported:
    """The program's graph with the model's tensors fetched by name instead of passed in."""
    signature = program.graph_signature
    mode = "training" if training else "evaluation"
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    lifted = signature.inputs_to_lifted_tensor_constants
    constants: dict[str, object] = {}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inputs: list[fx.Node] = []
    described = _description(program)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            copies[node] = graph.get_attr(names[node.name].removeprefix(ROOT))
        elif node.op == "placeholder" and node.name in lifted:
            name = f"constant_of_{mode}_{len(constants)}"
            constants[name] = program.constants[lifted[node.name]].detach().clone()
            copies[node] = graph.get_attr(name)
        elif node.op == "get_attr":  # a part of the graph that runs without gradients, say
            name = f"constant_of_{mode}_{len(constants)}"
            constants[name] = getattr(program.graph_module, node.target)
            copies[node] = graph.get_attr(name)
        elif node.op == "output":
            copies[node] = graph.output(copies[node.args[0][0]])
        elif node.target is torch.ops.aten._assert_tensor_metadata.default:
            continue  # it would hold on to the device of the example
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "placeholder":
                inputs.append(copies[node])
        kept = {"nn_module_stack": node.meta.get("nn_module_stack", {})}
        copies[node].meta = {**kept, _VALUE: described(node.meta.get("val"))}
    if len(program.graph.output_node().args[0]) != 1:
        raise ConfigError("the model returns more than one tensor; it must return its logits")
    used = tuple(node for node in inputs if isinstance(value_of(node), TensorValue))
    return Exported(graph, used, keys, constants)


def _description(program: Any) -> Callable[[object], Value]:
    """Of the values of a program, in plain numbers and words."""
    taken = (n for n in program.graph.nodes if n.name in program.graph_signature.user_inputs)
    values = (node.meta.get("val") for node in taken)
    batch = next(value.shape[0] for value in values if isinstance(value, Tensor))

    def size(value: int | torch.SymInt) -> int | str:
        if isinstance(value, int):
            return value
        return BATCH if value == batch else str(value)

    def described(value: object) -> Value:
        if isinstance(value, Tensor):
            return TensorValue(tuple(map(size, value.shape)), value.dtype)
        return size(value) if isinstance(value, int | torch.SymInt) else None

    return described
