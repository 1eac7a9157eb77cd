"""What the page is told of a run, compared with what the report says of the same files."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fedoptima.analysis.accounts import summarise
from fedoptima.analysis.summary import Summary
from fedoptima.core.effects import Halt
from fedoptima.core.events import TimerFired
from fedoptima.core.types import SERVER
from fedoptima.dashboard.folder import SILENT, RunFolder, Runs
from fedoptima.dashboard.reader import RunReader, Snapshot
from fedoptima.dashboard.stream import to_json
from fedoptima.trace.record import Record
from fedoptima.trace.writer import TraceWriter
from tests.dashboard.folders import GrowingRun, write_run
from tests.dashboard.looks import look, reader, state, usage
from tests.dashboard.stories import METHODS, story


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
    run.write(record for record in story("fl") if record.node != "d1")
    reading = reader(run.path)
    reading.look(set())
    own = [record for record in story("fl") if record.node == "d1"]
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


def test_a_run_has_a_state_in_words(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    reading = reader(run.path)

    def now() -> tuple[str, str]:
        found: dict[str, Any] = look(reading).sections["now"]  # type: ignore[assignment]
        return found["state"], found["text"]

    assert now() == ("starting", "0 devices here")
    os.utime(run.path / "trace.jsonl.gz", (1, 1))
    state, text = now()
    assert state == "starting", "a server that waits for devices is not silent"
    assert text.startswith("0 devices here, nothing new for ")
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
