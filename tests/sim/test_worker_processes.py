"""Worker processes: what happens when one of them fails, and when the driving one ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor, nn

from fedoptima.core.effects import Note
from fedoptima.core.errors import ConfigError, RunFailed
from fedoptima.trace.reader import read_trace
from tests.experiments.runs import network, run
from tests.experiments.test_device_faults import batch_normed
from tests.sim.test_checkpoint import end, go_on

DEADLINE = 180.0


def workers() -> list[int]:
    return [p.pid for p in multiprocessing.active_children() if p.pid and "worker" in p.name]


def test_no_process_is_left_after_a_run() -> None:
    seen: list[int] = []

    def look() -> bool:
        seen.extend(workers())
        return False

    run(workers=2, interrupted=look)
    assert len(set(seen)) == 2
    assert not workers()


def test_a_worker_that_is_killed_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    events = 0

    def kill() -> bool:
        nonlocal events
        events += 1
        if events == 60:
            os.kill(workers()[-1], signal.SIGKILL)
        return False

    with pytest.raises(RunFailed, match=r"worker process \d+ was ended by SIGKILL; was there eno"):
        run(workers=2, out=tmp_path / "run", checkpoint_every=0, interrupted=kill)
    assert not workers()
    assert end(go_on(tmp_path / "run", workers=1)) == end(run(workers=1))


def test_an_error_of_a_device_in_a_worker_is_told_in_place_of_its_update(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text(
        json.dumps({"slow": [0], "middle": list(range(1, 48)), "fast": list(range(48, 96))})
    )
    result = run(
        model=batch_normed(),
        data={"partition": {"kind": "file", "file": str(rows)}},
        out=tmp_path / "run",
        workers=2,
    )
    assert result.reason == "3 epochs done"
    trace = read_trace(tmp_path / "run" / "trace.jsonl.gz")
    (note,) = [e for record in trace for e in record.effects if isinstance(e, Note)]
    assert (note.kind, note.about) == ("device failed", "slow")
    assert note.text.startswith("batch normalisation cannot learn from a batch of one sample")


class FailsLater(nn.Module):
    """The server's side, which raises an error after some batches."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 3)
        self.calls = 0

    def forward(self, value: Tensor) -> Tensor:
        self.calls += self.training
        if self.calls > 20:
            raise ZeroDivisionError("the twenty-first batch")
        found: Tensor = self.last(value.flatten(1))
        return found


def test_an_error_of_the_server_in_a_worker_ends_the_run() -> None:
    model = nn.Sequential(*list(network())[:2], FailsLater())
    with pytest.raises(ZeroDivisionError, match="the twenty-first batch") as found:
        run(model=model, workers=2, split={"at": 2})
    assert "in a worker process" in "".join(found.value.__notes__)
    assert not workers()


def test_a_model_given_as_an_object_needs_no_name_to_be_trained_in_workers() -> None:
    class Local(nn.Sequential):
        pass

    assert end(run(model=Local(*network()), workers=2)) == end(run(workers=1))


def test_workers_compute_with_one_thread_each() -> None:
    with pytest.raises(ConfigError, match="use threads=1, or workers=1"):
        run(workers=2, threads=2)


# ---- the driving process ends --------------------------------------------------------------------

SCRIPT = """
import multiprocessing, sys
from tests.experiments.runs import run
def look():
    pids = [str(p.pid) for p in multiprocessing.active_children()]
    if pids and not said:
        said.append(1)
        print(*pids, flush=True)
    return False
said = []
run(workers=2, epochs=1e6, out=sys.argv[1], interrupted=look)
"""


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_for(what: Callable[[], bool]) -> None:
    end_of_patience = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < end_of_patience
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_the_process_that_drives(how: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_running, pids))
        process.send_signal(how)
        process.wait(DEADLINE)
        wait_for(lambda: not any(map(is_running, pids)))
    finally:
        process.kill()  # or it would train for ever
        process.communicate()
