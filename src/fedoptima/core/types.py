"""Names shared by every core module. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType, TypeVar, dataclass_transform

NodeId = NewType("NodeId", str)
SERVER = NodeId("server")

PayloadId = NewType("PayloadId", str)  # "node/incarnation/ticket": the same in every replay


def payload_id(node: NodeId, incarnation: int, ticket: int) -> PayloadId:
    """A job's result is named after the job, so ids need no counter of their own."""
    return PayloadId(f"{node}/{incarnation}/{ticket}")


_Class = TypeVar("_Class")
_Value = TypeVar("_Value")

LATER = "later"  # in a field's metadata


def later(default: _Value) -> _Value:
    """A last field that the class did not always have.

    Where it has its default, it is not written: what a run writes stays the same, to the byte, as
    long as nobody uses what was added. In a `value`, type checkers want ``default=``.
    """
    added: _Value = field(default=default, metadata={LATER: True})
    return added


@dataclass_transform(frozen_default=True, field_specifiers=(field, later))
def value(cls: type[_Class]) -> type[_Class]:
    """A dataclass whose objects are never written to, for what every event of a run makes.

    The type checker sees to that. At run time it is a plain dataclass: to make an object of a
    frozen one takes four times as long, and large simulations make hundreds of millions.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


@value
class Payload:
    """Tensors that the core carries and counts but never opens.

    ``value`` is typed ``object`` so that a core module cannot use it without a cast, and is
    left out of ``repr`` and ``==`` so that traces stay small and comparable. It is never
    written to after creation: simulation must not alias what a network would have copied.
    """

    id: PayloadId
    nbytes: int
    value: object = field(default=None, repr=False, compare=False)
