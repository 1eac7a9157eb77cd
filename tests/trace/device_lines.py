"""Records of a device, with nothing in them but their time."""

from __future__ import annotations

from collections.abc import Sequence

from fedoptima.core.effects import Halt
from fedoptima.core.events import Disconnected
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record

PI = NodeId("pi")


def record(at: float, node: NodeId = PI, text: str = "") -> Record:
    return Record(at, node, Disconnected(SERVER, int(at)), [Halt(text)] if text else [])


def lines(*times: float, node: NodeId = PI) -> list[str]:
    return [record(at, node).to_line() for at in times]


def times(records: Sequence[Record]) -> list[float]:
    return [record.at for record in records]
