"""A device's records on their way to the server."""

from __future__ import annotations

import pytest

from fedoptima.core.events import Connected
from fedoptima.core.types import SERVER, NodeId
from fedoptima.runtime.device import telemetry as telemetry_module
from fedoptima.runtime.device.telemetry import Telemetry
from fedoptima.trace.record import Record


class Disk:
    """The server's side: lines in a row, a number for the next."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def take(self, telemetry: Telemetry, *, acknowledge: bool = True) -> None:
        frame = telemetry.batch()
        if frame is None:
            return
        first = frame.telemetry.first
        assert first <= len(self.lines), "a gap"
        self.lines += list(frame.telemetry.lines)[len(self.lines) - first :]
        if acknowledge:
            telemetry.acknowledged(len(self.lines))


def note(telemetry: Telemetry, *numbers: int) -> list[str]:
    records = [Record(0.0, NodeId("pi"), Connected(SERVER, number), []) for number in numbers]
    for record in records:
        telemetry.observe(record)
    return [record.to_line() for record in records]


def test_records_are_kept_until_they_are_acknowledged() -> None:
    telemetry, disk = Telemetry(0), Disk()
    lines = note(telemetry, 1, 2)
    disk.take(telemetry, acknowledge=False)
    lines += note(telemetry, 3)
    assert telemetry.batch() is None, "one frame at a time"
    telemetry.connected(0)  # what was under way is lost
    disk.lines.clear()
    disk.take(telemetry)
    assert disk.lines == lines
    assert telemetry.batch() is None


def test_records_that_arrived_without_an_answer_are_not_repeated() -> None:
    telemetry, disk = Telemetry(0), Disk()
    lines = note(telemetry, 1, 2)
    disk.take(telemetry, acknowledge=False)
    lines += note(telemetry, 3)
    telemetry.connected(len(disk.lines))
    disk.take(telemetry)
    assert disk.lines == lines


def test_a_server_that_has_lost_records_gets_the_next_ones_without_a_gap() -> None:
    telemetry, disk = Telemetry(0), Disk()
    note(telemetry, 1, 2)
    disk.take(telemetry)
    disk.lines.pop()  # with its power
    telemetry.connected(len(disk.lines))
    (third,) = note(telemetry, 3)
    disk.take(telemetry)
    disk.take(telemetry)
    assert disk.lines[1:] == [third]


def test_of_too_many_records_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_module, "_KEPT", 3)
    telemetry, disk = Telemetry(0), Disk()
    lines = note(telemetry, 1, 2, 3, 4, 5)
    disk.take(telemetry)
    disk.take(telemetry)
    assert disk.lines == lines[-3:]
