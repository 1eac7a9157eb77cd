"""Names shared by every core module. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType

NodeId = NewType("NodeId", str)
SERVER = NodeId("server")

PayloadId = NewType("PayloadId", str)  # "node/incarnation/ticket": the same in every replay


def payload_id(node: NodeId, incarnation: int, ticket: int) -> PayloadId:
    """A job's result is named after the job, so ids need no counter of their own."""
    return PayloadId(f"{node}/{incarnation}/{ticket}")


@dataclass(frozen=True, slots=True)
class Payload:
    """Tensors that the core carries and counts but never opens.

    ``value`` is typed ``object`` so that a core module cannot use it without a cast, and is
    left out of ``repr`` and ``==`` so that traces stay small and comparable. It is never
    written to after creation: simulation must not alias what a network would have copied.
    """

    id: PayloadId
    nbytes: int
    value: object = field(default=None, repr=False, compare=False)
