"""Killed anywhere and gone on with, a run ends as if nothing had happened."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fedoptima import resume
from fedoptima.core.errors import ConfigError, TrainingDiverged
from fedoptima.engine.checkpoint import newest_checkpoint
from fedoptima.engine.server import ServerEngine
from fedoptima.experiments.result import Result
from fedoptima.experiments.simulated_run import Interrupted, SimulationWatch
from tests.experiments.runs import CHARGED, CHURN, FLEET, TRAINING, data, network, run

OPTIMIZER = {"name": "adam", "learning_rate": 0.01}
ADAM = {**TRAINING, "device": OPTIMIZER, "server": OPTIMIZER}
CUTS = [
    {"at": 0.05, "device": "slow", "kind": "cut"},
    {"at": 0.15, "device": "fast", "kind": "leave"},
    {"at": 0.2, "device": "slow", "kind": "restore"},
    {"at": 0.25, "device": "fast", "kind": "return"},
    {"at": 0.3, "device": "middle", "kind": "bandwidth", "mbps": 0.5},
]
EIGHT = {
    "server": FLEET["server"],
    "devices": [{"name": "d", "count": 8, "gflops": 0.003, "mbps": 2.0}],
}
OVERLAP = {"name": "fedoptima", "overlap": True, "max_delay": 2}
SUMS = {"name": "fl", "on_leave": "keep", "update_codec": "int8"}
LEAN = {"name": "fedoptima", "train_every": 3}
RUNS: dict[str, dict[str, object]] = {
    "fedoptima": {},
    "adam": {"training": ADAM},
    "fifo": {"method": {"name": "fedoptima", "scheduler": "fifo", "activation_cap": 2}},
    "no auxiliary network": {"method": {"name": "fedoptima", "auxiliary": "none"}},
    "fl": {"method": "fl"},
    "churn": {"fleet": {**FLEET, "churn": CHURN}},
    "fl with churn": {
        "method": {"name": "fl", "on_leave": "drop"},
        "fleet": {**FLEET, "churn": CHURN},
    },
    "fl with sums": {"method": SUMS, "fleet": {**FLEET, "changes": CUTS}},
    "splitfed with sums and churn": {
        "method": {**SUMS, "name": "splitfed"},
        "fleet": {**FLEET, "churn": CHURN},
    },
    "a device cut off": {"fleet": {**FLEET, "changes": CUTS}},
    "a device cut off without auxiliary network": {
        "fleet": {**FLEET, "changes": CUTS},
        "method": {"name": "fedoptima", "auxiliary": "none"},
    },
    "overlap": {"fleet": {**FLEET, "changes": CUTS}, "method": OVERLAP},
    "lean devices": {"fleet": {**FLEET, "changes": CUTS}, "method": LEAN},
    "robust fedoptima": {"method": {"name": "fedoptima", "robust": "refuse"}, "fleet": EIGHT},
    "robust oafl": {"method": {"name": "oafl", "robust": "refuse"}, "fleet": EIGHT},
    "robust fl": {"method": {"name": "fl", "robust": "trimmed_mean"}, "fleet": EIGHT},
    "reuse": {
        "method": {"name": "fedoptima", "reuse": {"batches": 6, "uses": 2}},
        "fleet": {**FLEET, "changes": CUTS},
    },
    "a shared link and all costs": {"fleet": {**CHARGED, "changes": CUTS}},
    "splitfed over a shared link": {"fleet": {**CHARGED, "churn": CHURN}, "method": "splitfed"},
    "dry": {"dry": True},
    "dry with all costs": {"dry": True, "fleet": CHARGED},
    "dry with churn": {"dry": True, "fleet": {**FLEET, "churn": CHURN}},
}


class After:
    """Says stop after so many events, and goes on saying so."""

    def __init__(self, events: int) -> None:
        self.left = events

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def python_objects() -> dict[str, object]:
    return {"model": network(), "train": data(), "test": data(48, seed=1)}


def go_on(path: Path, **options: object) -> Result:
    return resume(path, **{**python_objects(), **options})  # type: ignore[arg-type]


def end(result: Result) -> tuple[object, ...]:
    """Everything a run comes to, but its folder."""
    plain = json.loads(result.to_json())
    plain.pop("directory")
    return plain, result.trace_digest, result.weights_digest


@cache
def unbroken_end() -> tuple[object, ...]:
    return end(run())


def interrupted_every(events: int, path: Path, changes: dict[str, object]) -> tuple[Result, int]:
    """Stop, go on in fresh objects, stop again...; and how often a forward pass was open."""
    open_passes = 0
    try:
        return run(out=path, interrupted=After(events), **changes), 0
    except Interrupted:
        pass
    while True:
        newest = newest_checkpoint(path / "checkpoints")
        assert newest is not None
        books = json.loads((newest / "state.json").read_text())["engines"]
        open_passes += sum(bool(engine.get("waiting")) for engine in books.values())
        try:
            return go_on(path, interrupted=After(events)), open_passes
        except Interrupted:
            continue


@pytest.mark.parametrize("name", RUNS)
def test_a_run_stopped_again_and_again_ends_as_the_unbroken_one(name: str, tmp_path: Path) -> None:
    changes = {"epochs": 1.5, **RUNS[name]}
    unbroken = run(**changes)
    result, open_passes = interrupted_every(31, tmp_path / "run", changes)
    assert end(result) == end(unbroken)
    assert not (tmp_path / "run" / "checkpoints").exists()
    if name in ("fedoptima", "adam", "no auxiliary network"):
        assert open_passes > 0, "no checkpoint fell between a forward pass and its backward pass"


def test_a_model_that_is_not_finite_is_not_written_and_the_checkpoint_before_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        run(out=path, interrupted=After(40), epochs=1.0)
    before: list[Path | None] = []

    def poison(watch: SimulationWatch) -> None:
        engine = watch.simulation._executor._server
        assert isinstance(engine, ServerEngine)
        engine._global["0.0.bias"].fill_(float("nan"))
        before.append(newest_checkpoint(path / "checkpoints"))

    with pytest.raises((Interrupted, TrainingDiverged)):
        go_on(path, checkpoint_every=0.0, observer=poison, interrupted=After(20))
    assert newest_checkpoint(path / "checkpoints") == before[0]
    assert "no checkpoint is written: the model is not finite" in caplog.text
    assert end(go_on(path)) == end(run(epochs=1.0))


@pytest.mark.parametrize("events", range(1, 60, 7))
def test_a_run_stopped_early_ends_as_the_unbroken_one(events: int, tmp_path: Path) -> None:
    changes: dict[str, object] = {"epochs": 0.5}
    with pytest.raises(Interrupted):
        run(out=tmp_path / "run", interrupted=After(events), **changes)
    assert end(go_on(tmp_path / "run")) == end(run(**changes))


def test_a_run_on_a_preset_fleet_can_be_gone_on_with(tmp_path: Path) -> None:
    changes: dict[str, object] = {"fleet": "uniform", "epochs": 1.0}
    with pytest.raises(Interrupted):
        run(out=tmp_path / "run", interrupted=After(50), **changes)
    assert end(go_on(tmp_path / "run")) == end(run(**changes))


def test_data_options_given_in_python_survive(tmp_path: Path) -> None:
    changes: dict[str, object] = {"data": {"classes": 3, "validation": 0.25}, "epochs": 1.0}
    with pytest.raises(Interrupted):
        run(out=tmp_path / "run", interrupted=After(50), **changes)
    assert end(go_on(tmp_path / "run")) == end(run(**changes))


KILLED = """
import os, signal, sys
from tests.experiments.runs import run

def watch(watch):
    if watch.simulation.events > 40:
        os.kill(os.getpid(), signal.SIGKILL)

run(out=sys.argv[1], checkpoint_every=0, observer=watch)
"""


def test_a_killed_process_is_gone_on_with_in_another(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    path = [str(root), str(root / "src"), *filter(None, sys.path)]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert newest_checkpoint(tmp_path / "run" / "checkpoints") is not None
    assert end(go_on(tmp_path / "run")) == unbroken_end()


@cache
def _stopped_once(events: int) -> TemporaryDirectory[str]:
    folder = TemporaryDirectory()
    with pytest.raises(Interrupted):
        run(out=Path(folder.name) / "run", interrupted=After(events))
    return folder


def stopped(path: Path, events: int = 80) -> Path:
    """A run that was stopped, made once and copied; its newest checkpoint."""
    shutil.copytree(Path(_stopped_once(events).name) / "run", path)
    newest = newest_checkpoint(path / "checkpoints")
    assert newest is not None
    return newest


def test_a_run_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    newest = stopped(tmp_path / "run")
    shutil.rmtree(newest)
    assert end(go_on(tmp_path / "run")) == unbroken_end()


def test_a_checkpoint_half_written_is_not_looked_at(tmp_path: Path) -> None:
    newest = stopped(tmp_path / "run")
    half = newest.parent / ".999999999999.tmp"
    half.mkdir()
    (half / "state.json").write_text('{"kernel": ')
    assert end(go_on(tmp_path / "run")) == unbroken_end()


@cache
def _stopped_four_times() -> TemporaryDirectory[str]:
    folder = TemporaryDirectory()
    path = Path(folder.name) / "run"
    stopped(path, events=20)
    for _ in range(3):
        with pytest.raises(Interrupted):
            go_on(path, interrupted=After(20))
    return folder


def stopped_four_times(path: Path) -> list[Path]:
    """The checkpoints left, the oldest first."""
    shutil.copytree(Path(_stopped_four_times().name) / "run", path)
    return sorted((path / "checkpoints").iterdir())


def test_only_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    assert len(stopped_four_times(tmp_path / "run")) == 2
    assert end(go_on(tmp_path / "run")) == unbroken_end()


def test_damage_to_an_old_part_of_the_trace_does_not_stop_a_resume(tmp_path: Path) -> None:
    stopped(tmp_path / "run")
    trace = tmp_path / "run" / "trace.jsonl.gz"
    damaged = bytearray(trace.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    trace.write_bytes(damaged)
    assert end(go_on(tmp_path / "run")) == unbroken_end()


@pytest.mark.parametrize("saved", ["none", "by another version"])
def test_a_checkpoint_without_accounts_takes_them_from_the_trace(
    saved: str, tmp_path: Path
) -> None:
    checkpoint = stopped(tmp_path / "run")
    state = json.loads((checkpoint / "state.json").read_text())
    accounts = state.pop("accounts")
    if saved == "by another version":
        state["accounts"] = {**accounts, "layout": "other"}
    (checkpoint / "state.json").write_text(json.dumps(state))
    sums = [
        f"{hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("config.json", "state.json", "tensors.safetensors")
    ]
    (checkpoint / "SHA256SUMS").write_text("".join(sums))
    assert end(go_on(tmp_path / "run")) == unbroken_end()


def test_a_trace_that_has_lost_records_is_refused(tmp_path: Path) -> None:
    stopped(tmp_path / "run")
    trace = tmp_path / "run" / "trace.jsonl.gz"
    content = trace.read_bytes()
    trace.write_bytes(content[: len(content) // 3])
    with pytest.raises(ConfigError, match="restart the run"):
        go_on(tmp_path / "run")
    trace.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        go_on(tmp_path / "run")


def test_a_run_that_is_over_stays_as_it_is(tmp_path: Path) -> None:
    result = run(out=tmp_path / "run", epochs=1.0)
    before = (tmp_path / "run" / "trace.jsonl.gz").read_bytes()
    assert end(go_on(tmp_path / "run")) == end(result)
    assert (tmp_path / "run" / "trace.jsonl.gz").read_bytes() == before


def test_where_no_run_is_none_is_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run found here"):
        resume(tmp_path)
    (tmp_path / "config.json").write_text('{"recipe"')
    with pytest.raises(ConfigError, match="damaged"):
        resume(tmp_path)


@pytest.mark.parametrize(("missing", "message"), [("model", "model was"), ("train", "data was")])
def test_what_was_given_in_python_has_to_be_given_again(
    missing: str, message: str, tmp_path: Path
) -> None:
    stopped(tmp_path / "run")
    given = python_objects()
    del given[missing]
    if missing == "train":
        del given["test"]
    with pytest.raises(ConfigError, match=f"{message} given in Python; give it again"):
        resume(tmp_path / "run", **given)  # type: ignore[arg-type]


def test_saving_after_every_event_changes_nothing(
    tmp_path: Path,
) -> None:
    assert end(run(out=tmp_path / "run", checkpoint_every=0, epochs=0.2)) == end(run(epochs=0.2))
