"""Devices that come late, leave, return, are cut off or slow down, with real tensors on digits."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="digits come with scikit-learn")

from fedoptima import simulate
from fedoptima.core.effects import Run
from fedoptima.core.events import Connected
from fedoptima.core.jobs import FullStep, LoadModel
from fedoptima.core.types import SERVER
from fedoptima.experiments.result import Result
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record

DEVICES = [
    {"name": "steady", "gflops": 1.0, "mbps": 50.0},
    {"name": "goes", "gflops": 1.0, "mbps": 50.0},
    {"name": "lonely", "gflops": 0.7, "mbps": 50.0},
    {"name": "late", "gflops": 1.0, "mbps": 50.0, "joins_at": 1.0},
]
CHANGES = [
    {"at": 0.3, "device": "lonely", "kind": "cut"},
    {"at": 0.5, "device": "goes", "kind": "leave"},
    {"at": 0.6, "device": "steady", "kind": "bandwidth", "mbps": 20.0},
    {"at": 1.2, "device": "goes", "kind": "return"},
    {"at": 1.4, "device": "lonely", "kind": "restore"},
]


def digits(method: str, out: Path, seconds: float = 2.5) -> tuple[Result, list[Record]]:
    result = simulate(
        model="vgg5",
        data={"name": "digits", "partition": {"kind": "iid"}},
        fleet={"server": {"gflops": 3.0}, "devices": DEVICES, "changes": CHANGES},
        method=method,
        training={"batch_size": 30, "iterations": 2, "device": {"learning_rate": 0.05}},
        split={"at": 1},
        stop={"hours": seconds / 3600},
        out=out,
    )
    return result, list(read_trace(out / "trace.jsonl.gz"))


@pytest.mark.parametrize("method", ["fedoptima", "fl"])
def test_a_fleet_that_changes_goes_on_training(method: str, tmp_path: Path) -> None:
    result, records = digits(method, tmp_path / "run")
    assert result.reason == "2.5 seconds are over"
    assert result.seconds == pytest.approx(2.5, abs=0.1)
    assert result.accuracy is not None
    assert result.versions > 3

    lives = {name: 0 for name in ("steady", "goes", "lonely", "late")}
    loaded = dict.fromkeys(lives, 0.0)
    for record in records:
        if record.node != SERVER and isinstance(record.event, Connected):
            lives[record.node] += 1
        for effect in record.effects:
            if isinstance(effect, Run) and isinstance(effect.job, LoadModel):
                loaded[record.node] = record.at
    assert lives == {"steady": 1, "goes": 2, "lonely": 2, "late": 1}
    assert all(at > 1.4 for at in loaded.values()), "somebody did not come back to work"
    # Away for 0.7 s, or not there for the first second: less of the run than the steady one's.
    spans = {name: result.usage[name].span for name in lives}  # type: ignore[index]
    assert spans["steady"] == pytest.approx(result.seconds, abs=0.3)
    assert spans["goes"] < spans["steady"] - 0.5
    assert spans["late"] < spans["steady"] - 0.9


def test_a_device_cut_off_comes_back_in_the_same_life(tmp_path: Path) -> None:
    _, records = digits("fl", tmp_path / "run", seconds=1.8)
    steps = [
        record.at
        for record in records
        if record.node == "lonely"
        and any(isinstance(e, Run) and isinstance(e.job, FullStep) for e in record.effects)
    ]
    assert any(at < 0.3 for at in steps)
    assert any(at > 1.4 for at in steps)
    incarnations = {
        record.event.message.incarnation  # type: ignore[union-attr]
        for record in records
        if type(getattr(record.event, "message", None)).__name__ == "Join"
        and record.event.sender == "lonely"  # type: ignore[union-attr]
    }
    assert incarnations == {0}, "a connection was cut, not a life"
