"""A task without accuracy, with a model and data of one's own: over the network, to the end."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from fedoptima.analysis.formatting import brief
from tests.cli.conftest import Call
from tests.cli.local_run import Run
from tests.dashboard.test_app import client_of
from tests.support.network import until

OWN = """
import torch
from torch import nn

def build():
    layers = nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)
    return nn.Sequential(*layers)

def data():
    inputs = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    numbers = inputs[:, 0] - 2 * inputs[:, 1]
    return (inputs, numbers), (inputs[:30], numbers[:30])
"""
RECIPE = """
name = "numbers"
task = "regression"
model.name = "own_numbers:build"
data = { name = "own_numbers:data", partition.kind = "iid" }
training = { batch_size = 10 }
deploy.checkpoint_merges = 1
fleet.server.gflops = 1.0
stop.epochs = 100000

[[fleet.devices]]
name = "pi"
count = 2
gflops = 0.01
"""
OWN_CODE = ("--allow-module", "own_numbers")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_numbers.py").write_text(OWN)
    (tmp_path / "numbers.toml").write_text(RECIPE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def has_learned(run: Path) -> bool:
    whole = (run / "metrics.csv").read_text().rpartition("\n")[0]
    losses = [float(row["loss"]) for row in csv.DictReader(whole.splitlines())]
    return len(losses) > 1 and losses[-1] < losses[0] / 20


def test_it_is_killed_resumed_and_ended_and_its_loss_is_shown(call: Call, folder: Path) -> None:
    run = "runs/numbers-fedoptima"
    killed = Run(folder, "numbers.toml")
    assert "accuracy" not in killed.says("epochs, loss ")
    killed.clear_away()
    resumed = Run(folder, "--resume", run, *OWN_CODE)
    assert "accuracy" not in resumed.says("epochs, loss ")
    until(lambda: has_learned(folder / run), "its loss has fallen")
    assert call("stop", run).code == 0
    code, out, err = resumed.ends()
    assert code == 0, err
    assert "mae " in out
    assert "accuracy" not in out

    summary = json.loads((folder / run / "summary.json").read_text())
    losses = [point["loss"] for point in summary["curve"]]
    first, last = losses[0], losses[-1]
    assert min(losses) < first / 10  # the run went on until it was stopped, and a loss may rise
    assert f"loss {brief(last)} " in call("runs").words
    report = call("report", run)
    assert report.code == 0
    assert f"loss {last:.4g}" in report.words
    assert "accuracy" not in report.words
    with client_of(folder / "runs") as page:
        [row] = page.get("/api/runs").json()["runs"]
        now = page.get("/api/state", params={"run": "numbers-fedoptima"}).json()["now"]
    assert (
        row["quality"]
        == now["quality"]
        == (
            {"name": "loss", "last": last, "best": min(point["loss"] for point in summary["curve"])}
        )
    )


def test_data_that_cannot_be_divided_are_refused_before_a_device_is_started(
    call: Call, folder: Path
) -> None:
    answer = call("run", "numbers.toml", "--set", "data.partition.kind=dirichlet")
    assert answer.code == 2
    assert "numbers.toml: data.partition.kind = 'dirichlet': needs one class" in answer.complaint
    assert "listening" not in answer.complaint
    assert not (folder / "runs").exists()
