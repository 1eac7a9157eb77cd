"""What a device has recorded survives its process."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from fedoptima.core.events import Connected
from fedoptima.core.types import SERVER, NodeId
from fedoptima.runtime.device.spool import Spool
from fedoptima.runtime.device.telemetry import Telemetry
from fedoptima.runtime.disk import Disk
from fedoptima.trace.record import Record, time_of

PI = NodeId("pi")


def noted(telemetry: Telemetry, *numbers: int) -> None:
    for number in numbers:
        telemetry.observe(Record(float(number), PI, Connected(SERVER, number), []))


class Process:
    """One of the device's, whose clock began ``ago`` seconds ago."""

    def __init__(self, folder: Path, records: int, *, run: str = "first", ago: float = 0.0) -> None:
        began = time.time() - ago
        self.disk = Disk(folder, logging.getLogger("fedoptima.device"))
        self.spool = Spool(folder / "pi.records", PI, lambda: time.time() - began, self.disk)
        self.telemetry = Telemetry(records, run, self.spool)

    def sessions(self) -> list[int]:
        """Of the records that it would hand over."""
        frame = self.telemetry.batch(last=True)
        records = map(Record.from_line, frame.telemetry.lines if frame else [])
        return [record.event.session for record in records if isinstance(record.event, Connected)]


def test_records_that_were_not_handed_over_outlive_a_kill(tmp_path: Path) -> None:
    noted(Process(tmp_path, 0).telemetry, 1, 2, 3)  # nothing is closed, as in a kill
    again = Process(tmp_path, 1)
    assert again.sessions() == [2, 3]
    noted(again.telemetry, 4)
    assert Process(tmp_path, 1).sessions() == [2, 3, 4]
    assert Process(tmp_path, 3).sessions() == [4]


def test_their_times_are_on_the_clock_of_the_next_process(tmp_path: Path) -> None:
    noted(Process(tmp_path, 0, ago=100.0).telemetry, 90)
    frame = Process(tmp_path, 0, ago=2.0).telemetry.batch()
    assert frame is not None
    assert time_of(frame.telemetry.lines[0]) == pytest.approx(-8.0, abs=1.0)


def test_what_belongs_to_another_run_is_left_out(tmp_path: Path) -> None:
    noted(Process(tmp_path, 0).telemetry, 1)
    assert Process(tmp_path, 0, run="second").sessions() == []
    assert Process(tmp_path, 0, run="first").sessions() == []


@pytest.mark.parametrize("damage", ["cut", "noise", "no header", "nothing"])
def test_of_a_damaged_file_what_is_whole_counts(damage: str, tmp_path: Path) -> None:
    """The server would send the device away for a record that no device makes."""
    noted(Process(tmp_path, 0).telemetry, 1, 2)
    file = tmp_path / "pi.records"
    content = file.read_bytes()
    header, first, second = content.splitlines(keepends=True)
    match damage:
        case "cut":
            file.write_bytes(content[:-5])
        case "noise":
            file.write_bytes(header + first + b"\0" * len(second))
        case "no header":
            file.write_bytes(first + second)
        case _:
            file.write_bytes(b"")
    assert Process(tmp_path, 0).sessions() == ([1] if damage in ("cut", "noise") else [])


def test_the_file_does_not_grow_with_what_the_server_has(tmp_path: Path) -> None:
    process = Process(tmp_path, 0)
    for number in range(5_000):
        noted(process.telemetry, number)
        process.telemetry.acknowledged(number + 1)
    assert len((tmp_path / "pi.records").read_bytes().splitlines()) <= 1_001
    noted(process.telemetry, 7)
    assert Process(tmp_path, 5_000).sessions() == [7]


def test_a_disk_that_cannot_be_written_is_said_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        process = Process(tmp_path / "missing", 0)
        noted(process.telemetry, *range(3))
        for _ in range(3):
            process.spool.begin("first", 0, [])
    assert process.sessions() == [0, 1, 2]
    assert caplog.text.count("cannot be written") == 1
