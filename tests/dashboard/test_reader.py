"""What the page is told of a run, compared with what the report says of the same files."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fedoptima.analysis.accounts import summarise
from fedoptima.analysis.summary import Summary
from fedoptima.core.effects import Halt, Note
from fedoptima.core.events import JobFailed, TimerFired
from fedoptima.core.jobs import FullStep
from fedoptima.core.types import SERVER, NodeId
from fedoptima.dashboard.folder import SILENT, RunFolder, Runs
from fedoptima.dashboard.reader import RunReader, Snapshot
from fedoptima.dashboard.stream import MOST_ROWS, Wish, to_json
from fedoptima.trace.record import Record
from fedoptima.trace.writer import TraceWriter
from tests.dashboard.folders import GrowingRun, write_run
from tests.dashboard.stories import METHODS, story

D0, D1 = NodeId("d0"), NodeId("d1")


def reader(path: Path) -> RunReader:
    runs = Runs.at(path)
    return RunReader(runs, runs.all()[0])


def look(reading: RunReader, *spans: int) -> Snapshot:
    snapshot = reading.look(set(spans))
    while snapshot.behind:
        snapshot = reading.look(set(spans))
    return snapshot


def state(path: Path) -> dict[str, Any]:
    return look(reader(path)).sections


def usage(sections: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    rows = sections["rows"]
    return {r["name"]: (r["busy"], r["idle_1"], r["idle_2"]) for r in rows if "busy" in r}


def usage_in(summary: Summary) -> dict[str, tuple[float, float, float]]:
    return {node: (use.busy, use.idle_1, use.idle_2) for node, use in summary.usage.items()}


@pytest.mark.parametrize("networked", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_idle_times_are_those_of_the_report(tmp_path: Path, method: str, networked: bool) -> None:
    run = write_run(tmp_path / "run", story(method), networked=networked)
    summary, sections = summarise(run / "trace.jsonl.gz"), state(run)
    assert usage(sections) == usage_in(summary)
    assert sections["now"]["server_usage"] == asdict(summary.server_usage)
    assert sections["now"]["device_usage"] == asdict(summary.device_usage)
    assert any(two > 0 for _, _, two in usage(sections).values()) == (method != "fedoptima")


def test_idle_times_are_exact_in_the_end_though_a_device_was_late(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run", networked=True)
    run.write(record for record in story("fl") if record.node != D1)
    reading = reader(run.path)
    reading.look(set())
    own = [record for record in story("fl") if record.node == D1]
    run.write(own[:10])
    reading.look(set())
    run.write(own[10:])
    late = usage(look(reading).sections)
    run.end()
    exact = usage_in(summarise(run.path / "trace.jsonl.gz"))
    assert late != exact
    assert usage(look(reading).sections) == exact


def test_the_cap_is_the_runs_own_while_devices_are_still_to_come(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run", networked=True, cap=80)
    run.write(story()[:2])  # one device of many
    assert state(run.path)["queue"]["cap"] == 80


def test_a_simulation_holds_nothing_back(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    run.write(story()[:100])
    counted = summarise(run.path / "trace.jsonl.gz")
    assert usage(state(run.path)) == usage_in(counted)


def test_figures_and_curves_are_those_of_the_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", story())
    summary, sections = summarise(run / "trace.jsonl.gz"), state(run)
    now, queue = sections["now"], sections["queue"]
    assert now["seconds"] == pytest.approx(summary.seconds, rel=1e-5)
    assert now["version"] == summary.versions
    assert now["up_bytes"] == summary.traffic.up.total
    assert now["device_throughput"] == pytest.approx(summary.throughput.device, rel=1e-5)
    assert (queue["peak"], queue["cap"]) == (summary.memory.queue.peak, 5)
    assert len(sections["curve"]["seconds"]) == len(summary.curve)
    assert len(sections["speed"]["device"]) == len(summary.stretches)
    used = {row["name"]: row["used"] for row in sections["rows"][1:]}
    assert used == {node: given.batches for node, given in summary.balance.devices.items()}


def test_reading_on_gives_what_reading_at_once_gives(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    reading = reader(run.path)
    records = list(story())
    for begin in range(0, len(records), 40):
        run.write(records[begin : begin + 40])
        known = reading.look({0})
    run.end()
    known = look(reading, 0)
    whole = look(reader(run.path), 0)
    assert without_pace(known) == without_pace(whole)
    assert known.timelines == whole.timelines


def without_pace(snapshot: Snapshot) -> dict[str, Any]:
    sections: dict[str, Any] = json.loads(to_json(snapshot.sections))
    del sections["now"]["records_per_second"]
    return sections


def test_a_device_is_shown_as_away_and_as_back_again(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    reading = reader(run.path)
    run.write(record for record in story() if record.at < 1.5)
    assert row(reading, "d0")["state"].startswith("away for")
    assert not row(reading, "d0")["well"]
    run.write(record for record in story() if 1.5 <= record.at < 2.9)
    assert row(reading, "d0")["well"]
    kinds = [note["kind"] for note in look(reading).sections["notes"]]  # type: ignore[attr-defined]
    assert kinds == ["came back", "left"]


def row(reading: RunReader, name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = look(reading).sections["rows"]  # type: ignore[assignment]
    return next(row for row in rows if row["name"] == name)


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_failed_devices_error_is_in_its_row_and_among_the_notes(
    tmp_path: Path, by_itself: bool
) -> None:
    at = story()[99].at
    failed = JobFailed(1, FullStep(0), "disk full")
    told = Record(at, SERVER, TimerFired("x"), [Note("device failed", D0, "disk full")])
    own = Record(at, D0, failed, [])
    run = GrowingRun(tmp_path / "run")
    run.write([*story()[:100], own if by_itself else told])
    reading = reader(run.path)
    assert row(reading, "d0")["error"] == "disk full"
    note = look(reading).sections["notes"][0]  # type: ignore[index]
    assert (note["node"], note["text"], note["serious"]) == ("d0", "disk full", True)


def test_a_resumed_run_is_read_from_the_start(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    path = run.path / "trace.jsonl.gz"
    path.unlink()
    writer = TraceWriter(path, {})
    for record in story()[:150]:
        writer.write(record)
    mark = writer.mark()
    for record in story()[150:]:
        writer.write(record)
    writer.close()
    reading = reader(run.path)
    assert look(reading).sections["now"]["records"] == len(story())  # type: ignore[index]
    TraceWriter.resume(path, mark).close()
    sections = look(reading).sections
    assert sections["now"]["records"] == 150  # type: ignore[index]
    assert usage(sections) == usage_in(summarise(path))


def test_a_file_cut_back_and_grown_again_unseen_is_read_from_the_start(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    run.write(story()[:20])
    reading = reader(run.path)
    look(reading)
    path = run.path / "trace.jsonl.gz"
    path.unlink()
    writer = TraceWriter(path, {"longer": "than before " * 2000})
    for record in story():
        writer.write(record)
    writer.close()
    os.utime(path, (1, 1))
    assert look(reading).sections["now"]["records"] == len(story())  # type: ignore[index]


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


def test_a_run_has_a_state_in_words(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    reading = reader(run.path)

    def now() -> tuple[str, str]:
        found: dict[str, Any] = look(reading).sections["now"]  # type: ignore[assignment]
        return found["state"], found["text"]

    assert now() == ("starting", "0 devices here")
    run.write(story()[:100])
    assert now() == ("running", "")
    trace = run.path / "trace.jsonl.gz"
    before = trace.stat().st_mtime - 3 * SILENT
    os.utime(trace, (before, before))
    assert now() == ("silent", "nothing new for 60 s")
    (run.path / "disk_failing").write_text("the trace cannot be written (No space left)")
    assert now() == ("running", "the trace cannot be written (No space left)")
    (run.path / "disk_failing").write_text("")  # there was no room for words
    assert now() == ("running", "the server cannot write")
    (run.path / "disk_failing").unlink()
    (run.path / "stopped.txt").write_text("stopped at 12.5 s of the run\n")
    assert now() == ("stopped", "stopped at 12.5 s of the run")
    run.end()
    assert now() == ("finished", "done")


def test_a_run_that_failed_says_why(tmp_path: Path) -> None:
    halt = Halt("every device has failed", failed=True)
    run = GrowingRun(tmp_path / "run")
    run.write([*story()[:100], Record(story()[99].at, SERVER, TimerFired("x"), [halt])])
    now = state(run.path)["now"]
    assert (now["state"], now["text"]) == ("failed", "every device has failed")


def test_a_run_that_has_not_begun_can_be_looked_at(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "later", single=True)
    sections = RunReader(runs, RunFolder("later", tmp_path / "later")).look({0}).sections
    assert sections["now"]["state"] == "starting"  # type: ignore[index]


def test_a_message_is_small_and_has_every_device_of_sixteen(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", crowd(16))
    for span in (0, 120, 600):
        shown = Wish(span=span).cut(look(reader(run), span))
        assert len(shown["rows"]["shown"]) == len(shown["lanes"]["lanes"]) == 17  # type: ignore[index]
        assert len(to_json(shown)) < 50_000


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A hundred devices, of which the last one fails."""
    last = Record(story()[-1].at, NodeId("d99"), JobFailed(1, FullStep(0), "disk full"), [])
    run = write_run(tmp_path_factory.mktemp("crowd") / "run", [*crowd(100), last])
    return look(reader(run), 120)


def rows_of(wish: Wish, snapshot: Snapshot) -> dict[str, Any]:
    rows: dict[str, Any] = wish.cut(snapshot)["rows"]  # type: ignore[assignment]
    return rows


def test_of_a_crowd_the_first_rows_are_shown_those_in_trouble_on_top(crowded: Snapshot) -> None:
    rows = rows_of(Wish(), crowded)
    names = [row["name"] for row in rows["shown"]]
    assert names[:4] == [SERVER, "d99", "d0", "d1"]
    assert len(names) == 1 + MOST_ROWS
    assert (rows["all"], rows["matching"], rows["not_well"]) == (100, 100, 1)
    assert len(to_json(Wish().cut(crowded))) < 50_000


def test_a_filter_finds_devices_by_name_and_state(crowded: Snapshot) -> None:
    def names(text: str) -> list[str]:
        return [row["name"] for row in rows_of(Wish(text), crowded)["shown"]]

    assert names("D9") == [SERVER, "d9", *(f"d{number}" for number in range(90, 100))]
    assert names("failed d") == [SERVER, "d99"]
    assert names("nobody") == [SERVER]


def crowd(count: int) -> list[Record]:
    """The story told by many: every device's records again under other names."""
    records = []
    for record in story():
        if record.node == SERVER:
            records.append(record)
        else:
            number = int(record.node[1:])
            for name in range(number, count, 3):
                records.append(Record(record.at, NodeId(f"d{name}"), record.event, record.effects))
    return records


# ---- what devices have recorded ------------------------------------------------------------------


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
        Record(float(n), D0, JobFailed(n, FullStep(0), f"{n}" + "\0" * (32 << 10)), [])
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
