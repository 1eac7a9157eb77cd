"""The messages between a gateway and the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.messages import (
    ActivationBatch,
    GlobalModel,
    GradientBatch,
    Message,
    ModelUpdate,
)
from fedoptima.core.types import NodeId
from fedoptima.engine.server_admission import Expected
from fedoptima.runtime.gateway.arena import Block, Stored
from fedoptima.runtime.security.access_lists import AccessLists
from fedoptima.runtime.security.tls import ServerTLS
from fedoptima.runtime.server.reception import Admitted, Visitor
from fedoptima.runtime.server.session import Refusal
from fedoptima.runtime.timeouts import Timeouts

Key: TypeAlias = tuple[NodeId, int]  # a session: the device and its number
Carrier: TypeAlias = ActivationBatch | ModelUpdate | GradientBatch | GlobalModel


# ---- from the server -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """The first thing a gateway is told; then comes the address."""

    tls: ServerTLS | None
    access: AccessLists
    timeouts: Timeouts
    recipe: str  # what every device is sent
    limit: int  # bytes of the largest message
    connections: int  # at most
    clock: float  # what the run's clock shows when time.monotonic() is 0


@dataclass(frozen=True, slots=True)
class Answer:
    """To a `Knock`."""

    ticket: int
    answer: Admitted | Refusal


@dataclass(frozen=True, slots=True)
class Expect:
    """There is a plan: this is what devices may send from now on."""

    expected: Expected


@dataclass(frozen=True, slots=True)
class Deliver:
    session: Key
    message: Message  # without its tensors
    tensors: Stored | dict[str, Tensor] | None


@dataclass(frozen=True, slots=True)
class Acknowledge:
    session: Key
    records: int


@dataclass(frozen=True, slots=True)
class End:
    session: Key
    refusal: Refusal | None


@dataclass(frozen=True, slots=True)
class Ask:
    """Does the device answer a ping?"""

    session: Key
    patience: float


@dataclass(frozen=True, slots=True)
class Farewell:
    """Send what waits, take the last records, and end."""


# ---- from a gateway ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listening:
    """It has begun; with what went wrong, if it could not."""

    problem: str = ""


@dataclass(frozen=True, slots=True)
class Knock:
    ticket: int
    visitor: Visitor


@dataclass(frozen=True, slots=True)
class Arrived:
    """A device's message, which was checked."""

    session: Key
    message: Message  # without its tensors
    tensors: Stored | dict[str, Tensor] | None


@dataclass(frozen=True, slots=True)
class Wrong:
    """What a device has sent is not to be taken."""

    session: Key
    error: ProtocolViolation


@dataclass(frozen=True, slots=True)
class Records:
    session: Key
    first: int
    lines: list[str]
    offset: float | None  # the device's clock in terms of ours, if it is known


@dataclass(frozen=True, slots=True)
class Closed:
    session: Key
    why: str


@dataclass(frozen=True, slots=True)
class Answers:
    session: Key
    answers: bool


@dataclass(frozen=True, slots=True)
class Said:
    """For the server's log."""

    level: int
    text: str
    device: str | None


@dataclass(frozen=True, slots=True)
class Free:
    """Blocks of the receiver's own arena are not needed any more. Both sides say so."""

    blocks: tuple[Block, ...]
