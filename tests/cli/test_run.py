"""``fedoptima run``: real processes over TLS, none of which outlives the run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.cli.local_run import Run, lives
from tests.support.network import until

OWN = """
import torch
from torch import nn

def build():
    layers = nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    return nn.Sequential(*layers)

def data():
    inputs = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()
    return (inputs, labels), (inputs[:30], labels[:30])
"""
RECIPE = """
name = "tiny"
model.name = "own:build"
data.name = "own:data"
training = { batch_size = 10 }
stop.epochs = 4
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def long_run(folder: Path) -> Iterator[Run]:
    """A run that does not end by itself, at a moment when it has come to the training."""
    run = Run(folder, "tiny.toml", "--devices", "2", "--set", "stop.epochs=100000")
    run.says("epochs, accuracy")
    yield run
    run.clear_away()


PACED = """
fleet.server.gflops = 1.0

[[fleet.devices]]
name = "pi"
count = 2
gflops = 0.01
mbps = 5.0
"""


def test_devices_that_were_slowed_are_slowed_when_the_run_goes_on(folder: Path) -> None:
    (folder / "paced.toml").write_text(RECIPE + PACED)
    run = Run(folder, "paced.toml", "--paced", "--set", "stop.epochs=100000")
    run.says("epochs, accuracy")
    run.send(signal.SIGINT)
    _, _, err = run.ends()
    assert "resume with: fedoptima run --resume runs/tiny-fedoptima --allow-module own\n" in err
    again = Run(folder, "--resume", "runs/tiny-fedoptima", "--allow-module", "own")
    try:
        for name in ("pi-1", "pi-2"):
            again.says(f"{name} joined: 60 samples, 0.01 GFLOP/s, uplink 5.0 Mbit/s")
    finally:
        again.clear_away()


def test_a_run_ends_with_a_result_and_leaves_no_process(folder: Path) -> None:
    run = Run(folder, "tiny.toml", "--devices", "2", "--json")
    devices = run.devices()
    code, out, err = run.ends()
    assert (code, list(devices)) == (0, ["device-1", "device-2"])
    assert not any(map(lives, devices.values()))
    assert run.certificates == []
    assert json.loads(out)["reason"] == "4 epochs done"
    assert "for devices with a certificate of its CA" in err
    assert "device-2 joined: 60 samples" in err
    assert "ended" not in err
    left = folder / "runs" / "tiny-fedoptima"
    assert {path.name for path in (left / "logs").iterdir()} == (
        {"server.log", "device-1.log", "device-2.log"}
    )
    assert "device-1 is done: 4 epochs done" in (left / "logs" / "device-1.log").read_text()
    assert {path.name for path in left.iterdir()} >= {"model.safetensors", "summary.json"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_run_that_is_stopped_tells_its_devices_and_is_gone_on_with(
    long_run: Run, number: signal.Signals
) -> None:
    devices = long_run.devices()
    long_run.send_to_all(number)
    code, _, err = long_run.ends()
    assert code == 130
    assert "stopped; resume with: fedoptima run --resume runs/tiny-fedoptima" in err
    assert "Traceback" not in err
    assert "has ended" not in err
    assert not any(map(lives, devices.values()))
    assert long_run.certificates == []


def test_the_run_outlives_a_device_and_no_device_outlives_the_run(long_run: Run) -> None:
    first, second = long_run.devices().values()
    os.kill(first, signal.SIGKILL)
    long_run.says("device-1 has ended, killed by SIGKILL (out of memory?): ")
    long_run.says("not here: device-1")
    assert lives(second)
    long_run.send(signal.SIGKILL)
    until(lambda: not lives(second), "the other device has ended")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "no RECIPE; for example: fedoptima run"),
        (["tiny.toml"], "tiny.toml: the recipe has no fleet: say how many devices"),
        (["tiny.toml", "--devices", "0"], "Invalid value for '--devices'"),
        (["missing.toml", "--devices", "2"], "missing.toml"),
        (["tiny.toml", "--devices", "1", "--out", "."], "error: .: exists already"),
        (["--resume", "nothing"], "nothing: no run found here"),
        (["tiny.toml", "--devices", "2", "--resume", "x"], "leave out RECIPE, --devices"),
        (["--resume", "over"], "over: this run is over; its result is in over/summary.json"),
    ],
)
def test_what_cannot_work_is_said_and_nothing_is_left(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], complaint: str
) -> None:
    monkeypatch.syspath_prepend(folder)
    over = folder / "over"
    over.mkdir()
    recipe = {"model": {"name": "own:build"}, "data": {"name": "own:data"}, "stop": {"rounds": 1}}
    (over / "config.json").write_text(json.dumps({"recipe": recipe, "dry": False}))
    (over / "summary.json").touch()
    answer = call("run", *options)
    assert answer.code == 2
    assert complaint in answer.complaint
    assert not Path("runs").exists()


def test_more_devices_than_the_machine_bears_are_warned_of(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    crowd = 8 * (os.cpu_count() or 1) + 1
    answer = call("run", "tiny.toml", "--devices", str(crowd), "--out", ".")
    assert answer.code == 2
    assert f"warning: {crowd} device processes" in answer.complaint
    answer = call("run", "tiny.toml", "--devices", "10000000", "--out", ".")
    assert answer.code == 2
    assert "error: tiny.toml: 10,000,000 device processes take about" in answer.complaint
