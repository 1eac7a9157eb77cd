"""Models and data that are Python objects, in comparisons and sweeps: forked, or pickled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedoptima.comparison.process_pool import ProcessPool
from fedoptima.comparison.runner import compare, resume_comparison
from fedoptima.comparison.sending import pickled
from fedoptima.comparison.sweep import sweep
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.given import Given
from fedoptima.experiments.simulated_run import Interrupted
from tests.experiments.runs import FLEET, data, network

ROOT = Path(__file__).parents[2]
METHODS = ("fedoptima", "fl")


class Unsendable(nn.Module):
    """It holds a function that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 3)
        self.activation = lambda hidden: torch.relu(hidden)

    def forward(self, images: Tensor) -> Tensor:
        return self.second(self.activation(self.first(images.flatten(1))))


def own(model: nn.Module | None = None, **changes: object) -> dict[str, object]:
    usual: dict[str, object] = {
        "model": model or network(),
        "train": data(),
        "test": data(48, seed=1),
        "fleet": FLEET,
        "training": {"batch_size": 8},
        "split": {"at": 1},
        "epochs": 2.0,
    }
    return {**usual, **changes}


def wrong(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs.argmax(1) != labels).sum())


def plain_sgd(parameters: list[Tensor], lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr)


FORKED = """
from dataclasses import replace
import torch
import fedoptima
from fedoptima.methods.fl import fl
from tests.comparison.test_own_objects import METHODS, Unsendable, own

torch.set_num_threads(2)
torch.manual_seed(0)
model = Unsendable()
model(torch.randn(64, 16)).sum().backward()  # with threads that are in no fork


def mine(devices):
    return replace(fl(devices), local_loss=lambda loss, weights, received: 2 * loss)


found = fedoptima.compare(methods=[*METHODS, mine], jobs=2, **own(model))
assert not found.failures(), found.failures()
assert [run.method for run in found.runs] == [*METHODS, "mine"]
for run in found.runs:
    alone = fedoptima.simulate(**own(model), method=mine if run.method == "mine" else run.method)
    assert run.weights_digest == alone.weights_digest
    assert run.trace_digest == alone.trace_digest
"""


def test_a_comparison_takes_what_a_simulation_takes_even_if_it_cannot_be_pickled() -> None:
    """In a process of its own, where nothing has loaded gRPC: then processes are forked."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_stopped_comparison_asks_for_its_objects_again(tmp_path: Path) -> None:
    seen: list[object] = []

    def stop() -> bool:
        seen.append(None)
        return len(seen) > 2

    out = tmp_path / "out"
    long = own(epochs=500.0)
    with pytest.raises(Interrupted):
        compare(methods=["fl"], out=out, interrupted=stop, **long)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"given in Python; give it again \(model=\.\.\.\)"):
        resume_comparison(out)
    again = {name: long[name] for name in ("model", "train", "test")}
    with pytest.raises(Interrupted):
        resume_comparison(out, interrupted=lambda: True, **again)  # type: ignore[arg-type]


def test_a_stopped_comparison_takes_a_task_and_an_optimiser_again(tmp_path: Path) -> None:
    count = {"name": "classification", "metrics": {"wrong": wrong}}
    training = {"batch_size": 8, "device": {"name": plain_sgd}}
    mine = {**own(epochs=1.0), "task": count, "training": training}
    out = tmp_path / "out"
    with pytest.raises(Interrupted):
        compare(methods=["fl"], out=out, interrupted=lambda: True, **mine)  # type: ignore[arg-type]
    again = {name: mine[name] for name in ("model", "train", "test", "task", "training")}
    found = resume_comparison(out, jobs=1, **again)  # type: ignore[arg-type]
    assert not found.failures()


def test_a_sweep_takes_them_too() -> None:
    found = sweep(
        vary={"training.batch_size": [8, 16]},
        jobs=1,
        **own(dry=True),  # type: ignore[arg-type]
    )
    assert not found.failures()
    assert [row.settings for row in found.rows] == [
        {"training.batch_size": 8},
        {"training.batch_size": 16},
    ]


def test_what_cannot_be_sent_where_processes_cannot_be_forked_is_said_before_anything_runs() -> (
    None
):
    """With several torch threads a fork would wait forever."""
    with pytest.raises(ConfigError, match=r"model=\.\.\.,.*cannot be sent.*lambda.*threads=1"):
        compare(methods="fl", **own(Unsendable(), threads=2))  # type: ignore[arg-type]


def test_what_can_be_pickled_is_sent_where_processes_cannot_be_forked() -> None:
    found = compare(methods="fl", **own(threads=2, dry=True))  # type: ignore[arg-type]
    assert not found.failures()
    assert found.runs[0].figures is not None


def test_classes_of_a_notebook_are_not_found_by_processes_that_are_not_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(Unsendable, "__module__", "__main__")
    monkeypatch.setattr(main, "Unsendable", Unsendable, raising=False)
    monkeypatch.delattr(main, "__file__", raising=False)
    model = Unsendable()
    del model.activation
    with pytest.raises(ConfigError, match=r"^model=\.\.\.: cannot be sent .*defined in a notebook"):
        pickled(Given(model), threads=1)
    assert pickled(Given(nn.Linear(2, 2)), threads=1)


def test_processes_are_forked_only_for_objects_and_where_that_is_safe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "grpc", raising=False)
    given = Given(nn.Linear(2, 2))
    assert not ProcessPool(1).forks
    assert ProcessPool(1, given).forks
    assert not ProcessPool(1, given, threads=2).forks
    monkeypatch.setitem(sys.modules, "grpc", sys)
    assert not ProcessPool(1, given).forks
