"""Where a model may be cut: between blocks, and never through a branch.

A cut is allowed where one activation crosses it, where neither side shares a parameter with the
other (two copies of it would drift apart), and where the second side does not write into what
crosses (it may still be in transit). Where that is not so, neighbours form one block. A part keeps
the whole model's tensor names, so the parts' states are a partition of the model's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import (
    call,
    is_activation,
    is_inputs,
    map_tensors,
    samples_in,
    shapes_in_words,
    tensors_of,
)
from fedoptima.preprocess.agreement import difference
from fedoptima.preprocess.division import refused
from fedoptima.preprocess.exported import ExportSegments
from fedoptima.preprocess.graph import GraphSegments
from fedoptima.preprocess.isolation import isolated
from fedoptima.preprocess.standin import StandInSegments
from fedoptima.preprocess.user_code import WAY_OUT, CannotTrace

_MAY_NOT_CROSS = (
    "a tensor without the samples first, the data themselves or weights that both sides use would "
    "cross"
)
# By model and way of taking it apart: it is cut again for each plan, and a trial takes a while.
_differences: WeakKeyDictionary[nn.Module, dict[type, str | None]] = WeakKeyDictionary()

_JOINED = "+"  # between the names of modules in the name of a block; no module's has it


class Segments(Protocol):
    """A model as a chain of smallest pieces; cuts are chosen among the joints between them."""

    def __len__(self) -> int: ...
    def name(self, start: int, stop: int) -> str: ...
    def part(self, start: int, stop: int) -> nn.Module: ...
    def after(self, module: str) -> int | None: ...
    def may_cross(self, value: object) -> bool: ...
    def may_stand_alone(self, part: nn.Module) -> bool: ...


@dataclass(frozen=True, slots=True)
class Cuttable:
    """A model's blocks, in order."""

    names: tuple[str, ...]
    segments: Segments
    starts: tuple[int, ...]  # the segment each block begins with, then the number of segments

    def part(self, start: int, stop: int) -> nn.Module:
        """Blocks start..stop-1 as one module that shares its parameters with the model."""
        if not 0 <= start < stop <= len(self.names):
            raise ConfigError(
                f"blocks {start}..{stop}: no such part; the model has {len(self.names)} blocks "
                f"({', '.join(self.names)})"
            )
        return self.segments.part(self.starts[start], self.starts[stop])

    def after(self, module: str) -> int | None:
        """How many blocks are on the device if it is cut after a module; None: it cannot be.

        Or after a block of several, as plans and errors name it.
        """
        if _JOINED in module:
            return self.names.index(module) + 1 if module in self.names[:-1] else None
        segment = self.segments.after(module)
        inner = self.starts[1:-1]
        return inner.index(segment) + 1 if segment in inner else None

    def has(self, at: str | None) -> bool:
        """Whether it can be cut there, or anywhere."""
        return len(self.names) > 1 if at is None else self.after(at) is not None


def cuttable(
    model: nn.Module, example: object, at: str | None = None, *, quick: bool = False
) -> Cuttable:
    """Find the blocks of ``model``, trying each on ``example``, a batch of its input.

    ``at``: the name of a module after which it must be possible to cut. ``quick``: leave out what
    takes seconds; the model is not to be cut, only described.
    """
    if at is not None and _JOINED in at:
        whole = cuttable(model, example, quick=quick)
        if whole.after(at) is not None:
            return whole
    if at is not None:
        _check_name(model, at)
    found: Cuttable | None = None
    error_of_last: ConfigError | None = None
    why: str | None = None
    for segments_of in _ways(model, example, at, quick):
        try:
            candidate = _blocks(segments_of(), example)
            if not quick:
                _check_agreement(model, candidate, example)
        except ConfigError as error:
            if found is None and not isinstance(error, CannotTrace):
                raise
            error_of_last = error
            continue
        if found is None or len(candidate.names) > len(found.names):
            found = candidate
        if candidate.has(at) or quick:
            return candidate
        if isinstance(candidate.segments, ExportSegments):
            why = candidate.segments.hindrance
    if found is None and at is not None:  # no graph, but the user knows where it can be cut
        return _blocks(StandInSegments(model, example, at), example)
    if found is None:
        raise cast(ConfigError, error_of_last)
    if at is None:
        return found
    raise refused(at, f"{why or _MAY_NOT_CROSS}; {_elsewhere(found)}")


def _elsewhere(cuts: Cuttable) -> str:
    *before, _ = enumerate(cuts.names, start=1)  # nothing is left behind the last one
    numbered = ", ".join(f"{number} ({name})" for number, name in before)
    if not before:
        return "write the model as an nn.Sequential of blocks"
    return f"cut it after one of its blocks, by number: {numbered}"


def _ways(
    model: nn.Module, example: object, at: str | None, quick: bool
) -> Iterator[Callable[[], Segments]]:
    """How the model may be taken apart: what is quick and changes least comes first."""
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        yield lambda: ChildSegments(model)
    yield lambda: GraphSegments(model, example)
    if not quick:
        yield lambda: ExportSegments(model, example, at)


def _blocks(segments: Segments, example: object) -> Cuttable:
    starts = _block_starts(segments, example)
    ends = (*starts[1:], len(segments))
    names = tuple(segments.name(a, b) for a, b in zip(starts, ends, strict=True))
    return Cuttable(names, segments, (*starts, len(segments)))


def forget_agreement(model: nn.Module) -> None:
    """It may have changed since it was tried out: hooks come and go."""
    _differences.pop(model, None)


def _check_agreement(model: nn.Module, cuts: Cuttable, example: object) -> None:
    """Refuse pieces that would learn something else than the model; one block is never cut."""
    if len(cuts.names) < 2:
        return
    known, way = _differences.setdefault(model, {}), type(cuts.segments)
    if way not in known:
        known[way] = difference(model, cuts.part(0, len(cuts.names)), example)
    if (found := known[way]) is not None:
        raise CannotTrace(
            f"model {type(model).__name__}: taken apart it would not learn what it learns whole "
            f"({found}); an autograd function of its own, hooks, torch.no_grad, autocast, numbers "
            f"drawn at random and a train() of its own can be the reason; {WAY_OUT}"
        )


def _check_name(model: nn.Module, at: str) -> None:
    known = [name for name, _ in model.named_modules() if name]
    if at not in known:
        near = get_close_matches(at, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known[:20])}"
        raise ConfigError(f"split.at = {at!r}: the model has no module of this name; {hint}")


class ChildSegments:
    """The children of an ``nn.Sequential``, its author's own blocks, if they have weights."""

    def __init__(self, model: nn.Sequential) -> None:
        # Not named_children(): it passes over a child that occurs twice.
        self._children: list[tuple[str, nn.Module]] = list(zip(model._modules, model, strict=True))
        self._training = model.training

    def __len__(self) -> int:
        return len(self._children)

    def name(self, start: int, stop: int) -> str:
        return _JOINED.join(name for name, _ in self._children[start:stop])

    def part(self, start: int, stop: int) -> nn.Module:
        part = nn.Sequential(OrderedDict(self._children[start:stop]))
        part.training = self._training
        return part

    def after(self, module: str) -> int | None:
        names = [name for name, _ in self._children]
        if module not in names:
            return None
        index = names.index(module) + 1
        # What has no weights goes with the block before it.
        while index < len(names) and not any(True for _ in self._children[index][1].parameters()):
            index += 1
        return index

    def may_cross(self, value: object) -> bool:
        return is_activation(value)

    def may_stand_alone(self, part: nn.Module) -> bool:
        # A side without weights has nothing to learn, and would send the raw data.
        return any(True for _ in part.parameters())


def _block_starts(segments: Segments, example: object) -> tuple[int, ...]:
    """The segments that begin a block: those that a cut may separate from the one before."""
    if not len(segments):
        raise ConfigError("the model is empty; it needs at least one block")
    parts = [segments.part(index, index + 1) for index in range(len(segments))]
    joined = (
        _joined_for_weights(segments, parts)
        | _joined_by_sharing(parts)
        | _joined_by_running(segments, parts, example)
    )
    return tuple(index for index in range(len(segments)) if index == 0 or index not in joined)


def _joined_for_weights(segments: Segments, parts: Sequence[nn.Module]) -> set[int]:
    """A piece that is not a block by itself belongs to the block before it, or to the first."""
    alone = [segments.may_stand_alone(part) for part in parts]
    first = alone.index(True) if any(alone) else len(parts)
    return {index for index, block in enumerate(alone) if index <= first or not block}


def _joined_by_sharing(parts: Sequence[nn.Module]) -> set[int]:
    """Pieces that use the same tensor, and all between them, stay together."""
    first_use: dict[int, int] = {}
    joined: set[int] = set()
    for index, part in enumerate(parts):
        for tensor in part.state_dict(keep_vars=True).values():
            joined.update(range(first_use.setdefault(id(tensor), index) + 1, index + 1))
    return joined


def _joined_by_running(segments: Segments, parts: Sequence[nn.Module], example: object) -> set[int]:
    """Run the pieces one by one: which write into their input, whose output cannot be sent."""
    joined: set[int] = set()
    value, larger = example, _with_one_more(example)
    for index, part in enumerate(parts):
        name = segments.name(index, index + 1)
        entered = map_tensors(value, torch.clone) if is_inputs(value) else value
        value, larger = _try(name, part, entered), _try(name, part, larger)
        # Every write in place, also through a view, raises a tensor's version from a clone's 0.
        if is_inputs(entered) and any(t._version for t in tensors_of(entered)):
            joined.add(index)
        ordered = segments.may_cross(value) and _is_real(value)
        if not (ordered and _samples_first(value, larger, samples_in(example))):
            joined.add(index + 1)
    if not isinstance(value, Tensor):
        raise ConfigError(
            f"the model returns {type(value).__name__}; it must return one tensor, the logits"
        )
    return joined


def _with_one_more(example: object) -> object:
    """Of two batches one must be told from a dimension that happens to be as large."""
    rows = torch.arange(samples_in(example) + 1) % samples_in(example)
    return map_tensors(example, lambda tensor: tensor[rows])


def _samples_first(value: object, larger: object, samples: int) -> bool:
    both = ((value, samples), (larger, samples + 1))
    return all(t.shape[:1] == (rows,) for each, rows in both for t in tensors_of(each))


def _is_real(value: object) -> bool:
    """Whose values have an order: what is received is held against the values of an example."""
    return not any(tensor.is_complex() for tensor in tensors_of(value))


def _try(name: str, part: nn.Module, value: object) -> object:
    try:
        with isolated(part, value) as copy, torch.no_grad():
            result = call(copy, value)
    except Exception as error:  # any error in a user's forward concerns the user's model
        raise ConfigError(
            f"the model does not accept the data: block {name!r} failed on input of shape "
            f"{shapes_in_words(value)} ({type(error).__name__}: {error}); "
            "check the model's input size and type"
        ) from error
    return result
