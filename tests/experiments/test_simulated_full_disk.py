"""A simulation goes on while its disk is full, and nothing is missing when there is room again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from fedoptima import resume
from fedoptima.core.errors import RunFailed
from fedoptima.core.events import Ended
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record
from fedoptima.trace.writer import PatientWriter, TraceFile, read_records
from fedoptima.verification.replay import replay
from tests.experiments.runs import data, network, run
from tests.support.file_sizes import largest_file

FULL = range(20, 60)  # events
LONG = 1 << 20  # characters: such a record is written at once


class Disk:
    """Full from one event to another."""

    def __init__(self) -> None:
        self.events = 0
        self._full = largest_file(10)

    def __call__(self) -> bool:
        self.events += 1
        if self.events == FULL.start:
            self._full.__enter__()
        if self.events == FULL.stop:
            self._full.__exit__(None, None, None)
        return False


def test_a_simulation_goes_on_while_its_disk_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    usual, disk = run(epochs=1.0), Disk()
    result = run(epochs=1.0, out=tmp_path / "run", checkpoint_every=0, interrupted=disk)
    assert disk.events > FULL.stop
    assert result.trace_digest == usual.trace_digest
    assert result.weights_digest == usual.weights_digest
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum("no checkpoint is written" in line for line in said) == 1, said
    found = replay(tmp_path / "run")
    assert found.difference is None
    assert found.records == result.events
    assert not found.gaps


def test_a_disk_that_is_full_at_the_end_is_named_and_the_run_can_be_resumed(
    tmp_path: Path,
) -> None:
    folder, full, events = tmp_path / "run", ExitStack(), count()

    def disk() -> bool:
        if next(events) == FULL.start:
            full.enter_context(largest_file(10))
        return False

    with full, pytest.raises(RunFailed, match=r"cannot be written .*fedoptima\.resume\("):
        run(epochs=1.0, out=folder, checkpoint_every=0, interrupted=disk)
    resumed = resume(folder, model=network(), train=data(), test=data(48, seed=1))
    assert resumed.weights_digest == run(epochs=1.0).weights_digest


def test_records_wait_for_room_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [Record(float(at), SERVER, Ended(str(at) * LONG), []) for at in range(4)]
    writer = PatientWriter(tmp_path / "trace.gz", {})
    with largest_file(10):
        for record in records[:3]:
            writer.write(record)
        with pytest.raises(OSError, match="too large"):
            writer.mark()  # what is not written cannot be resumed from
    writer.write(records[3])
    writer.close()
    assert [record for _, record in read_records(tmp_path / "trace.gz")] == records
    said = [line.split(" (")[0] for line in caplog.messages]
    assert said == [
        "the trace cannot be written",
        "the trace is written again, and nothing is missing",
    ]


class FullFile(TraceFile):
    tries = 0

    def append(self, lines: Sequence[str]) -> None:
        self.tries += 1
        raise OSError("full")


def test_a_full_disk_is_not_tried_again_with_every_megabyte(tmp_path: Path) -> None:
    """Every try compresses all that waits."""
    writer = PatientWriter(tmp_path / "trace.gz", {})
    writer.file = FullFile(tmp_path / "full.gz")
    for at in range(100):
        writer.write(Record(float(at), SERVER, Ended(str(at % 10) * LONG), []))
    assert writer.file.tries < 20  # a busy machine may take seconds, and tries once a second
