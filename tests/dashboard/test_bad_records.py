"""Records that are damaged, or that a device made to do harm: the rest of the run is shown."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fedoptima.core.effects import Halt, Note
from fedoptima.core.events import JobFailed, TimerFired
from fedoptima.core.jobs import FullStep
from fedoptima.core.types import SERVER, NodeId
from fedoptima.dashboard.stream import Wish, to_json
from fedoptima.trace.record import Record
from tests.dashboard.folders import GrowingRun, write_run
from tests.dashboard.looks import look, reader, state, usage
from tests.dashboard.stories import story


def test_a_damaged_trace_is_told_and_what_was_read_stays(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    run.write(story()[:100])
    reading = reader(run.path)
    look(reading)
    with (run.path / "trace.jsonl.gz").open("ab") as file:
        file.write(b"this was never compressed")
    for _ in range(2):
        now = look(reading).sections["now"]
        assert now["state"] == "unreadable"  # type: ignore[index]
        assert "damaged" in now["text"]  # type: ignore[index]


def damaged_run(path: Path, content: bytes) -> Path:
    """``content`` is added to the records of d1."""
    run = write_run(path, story("fl"), networked=True)
    with (run / "devices" / "d1.jsonl.gz").open("ab") as file:
        file.write(content)
    return run


NONSENSE = b'[9999.0,"d1",["JobDone","of","nothing"]]\nno record\n'


@pytest.mark.parametrize(
    "content", [gzip.compress(NONSENSE, mtime=0), b"\x1f\x8b\x08\x00 damaged " + bytes(100)]
)
def test_a_bad_part_of_a_devices_records_is_named_and_the_rest_of_the_run_is_shown(
    tmp_path: Path, content: bytes
) -> None:
    whole = state(write_run(tmp_path / "whole", story("fl"), networked=True))
    sections = state(damaged_run(tmp_path / "run", content))
    assert sections["now"]["state"] == "finished"
    assert sections["curve"] == whole["curve"]
    assert usage(sections)["d0"] == usage(whole)["d0"]
    (entry,) = (note for note in sections["notes"] if note["kind"] == "records left out")
    assert entry["node"] == "d1"
    assert "d1.jsonl.gz" in entry["text"]
    assert entry["serious"]


def test_a_damaged_file_of_the_server_is_still_said_to_be_unreadable(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", story("fl"), networked=True)
    with (run / "trace.jsonl.gz").open("ab") as file:
        file.write(gzip.compress(b"no record\n"))
    assert state(run)["now"]["state"] == "unreadable"


def test_long_errors_do_not_make_a_long_answer(tmp_path: Path) -> None:
    """651 KiB of them on disk made an answer of 156 MB: 40 of that length, 6 characters each.

    Shorter ones here: a file that compresses as those did is not read at all any more.
    """
    records = [
        Record(float(n), NodeId("d0"), JobFailed(n, FullStep(0), f"{n}" + "\0" * (32 << 10)), [])
        for n in range(40)
    ]
    notes = [
        Record(100.0 + n, SERVER, TimerFired("x"), [Note("device failed", NodeId(f"d{n}"), text)])
        for n, text in enumerate(["\0" * (32 << 10)] * 40)
    ]
    end = Record(200.0, SERVER, TimerFired("x"), [Halt("\0" * (32 << 10), failed=True)])
    run = write_run(tmp_path / "run", [*records, *notes, end])
    snapshot = look(reader(run))
    answer = to_json(Wish().cut(snapshot))
    assert len(answer) < 300_000
    assert "(32,768 characters)" in answer
