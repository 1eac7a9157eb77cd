"""What the driving process and its workers send each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fedoptima.core.jobs import Job
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.engine.evaluation import Tally
from fedoptima.engine.payloads import Tensors
from fedoptima.sim.processes.shared_memory import Place

Book = Mapping[str, object]  # what an engine saves besides tensors


@dataclass(frozen=True, slots=True)
class Reset:
    """A device's process has ended and started again."""


@dataclass(frozen=True, slots=True)
class Forget:
    """What was noted about a device's batches."""

    device: NodeId


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result is the weights of the whole model."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Of the server, from a checkpoint."""

    book: Book
    tensors: Tensors


@dataclass(frozen=True, slots=True)
class Save:
    """What the node's engine saves in a checkpoint: the result."""


@dataclass(frozen=True, slots=True)
class Release:
    """Another worker goes on with the device: the same, and nothing of it stays here."""


@dataclass(frozen=True, slots=True)
class EvaluateBatches:
    first: int
    last: int  # not among them
    weights: Tensors


Work = Job | Reset | Forget | Snapshot | Restore | Save | Release | EvaluateBatches


class Declared(NamedTuple):
    """What a job has declared, which its result must match."""

    result: PayloadId
    nbytes: int
    samples: int
    text: str | None  # None: nobody has read it yet


class Aside(NamedTuple):
    """What a device keeps between two rounds."""

    book: Book
    tensors: Tensors


class Order(NamedTuple):
    number: int
    node: NodeId
    work: Work
    declared: Declared | None = None
    begins: bool = False  # this worker does not have the device's state yet
    aside: Aside | None = None  # the state, if it has one
    buffer: Place | None = None  # for the result


class Done(NamedTuple):
    number: int
    result: Place | None = None
    error: Exception | None = None  # that the work has raised
    fault: Exception | None = None  # what is wrong with the values
    book: Book | None = None  # of what a device has set aside, or an engine saves
    aside: Place | None = None  # its tensors, if they are not where they were before
    sums: tuple[Tally, ...] = ()
    text: str = ""
    seconds: float = 0.0  # that it took
    faults: Mapping[NodeId, Exception] = {}  # of all devices
