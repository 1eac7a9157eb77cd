"""Recorded steps on a GPU end where steps computed one by one end, bit for bit."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.effects import PROBLEMS, Note
from fedoptima.core.method import Method
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.graphs.device import GraphedDevice
from fedoptima.engine.graphs.server import GraphedServer
from fedoptima.engine.payloads import Tensors
from fedoptima.engine.server import ServerEngine
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.experiments.simulation import resume
from fedoptima.methods.registry import METHODS as METHOD_BUILDERS
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from tests.experiments import test_cuts
from tests.experiments.runs import (
    CHURN,
    FLEET,
    Poison,
    data,
    network,
    run,
    set_up,
    without_metrics,
)

DEVICE = "cuda"

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

METHODS = [
    {"name": "fedoptima"},
    {"name": "fl"},
    {"name": "splitfed"},
    {"name": "pipar", "micro_batches": 3},
    {"name": "fedasync"},
    {"name": "fedbuff", "buffer": 2},
    {"name": "oafl"},
    {"name": "fedoptima", "robust": "refuse"},
    {"name": "fedoptima", "codec": "int8", "update_codec": "int8"},
    {"name": "splitfed", "codec": "int8", "gradient_codec": "int8", "update_codec": "bfloat16"},
    {"name": "pipar", "micro_batches": 3, "codec": "bfloat16", "gradient_codec": "int8"},
    {"name": "fedbuff", "buffer": 2, "update_codec": "int8"},
    {"name": "fedoptima", "train_every": 3},
    {"name": "fedoptima", "overlap": True},
    {"name": "fedoptima", "overlap": True, "train_every": 2},
]
EVERY = pytest.mark.parametrize("method", METHODS, ids=lambda m: " ".join(map(str, m.values())))


def played(method: object, *, graphs: bool, **parts: object) -> tuple[list[Record], Tensors]:
    records: list[Record] = []
    with deterministic(1):
        assembly = set_up(
            records, graphs=graphs, method=method, device=DEVICE, stop={"epochs": 4.0}, **parts
        )
        if graphs:
            assert isinstance(assembly.server_engine, GraphedServer)
        assert assembly.simulation.run(lambda: len(records) > 20_000) is not None
    assert isinstance(assembly.server_engine, ServerEngine)
    return records, assembly.server_engine.export()


def assert_same(first: Tensors, second: Tensors) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


@EVERY
def test_recorded_steps_give_the_same_trace_and_weights(
    method: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        (records, weights), (expected, reference) = (
            played(method, graphs=graphs) for graphs in (True, False)
        )
    assert "cannot be recorded" not in caplog.text
    assert [without_metrics(r) for r in records] == [without_metrics(r) for r in expected]
    assert_same(weights, reference)


@pytest.mark.parametrize("name", ["fedoptima", "splitfed", "fl"])
def test_devices_may_come_and_go(name: str) -> None:
    fleet = {**FLEET, "churn": CHURN}
    method = {"name": name}
    (records, weights), (expected, reference) = (
        played(method, graphs=graphs, fleet=fleet) for graphs in (True, False)
    )
    assert len(records) == len(expected)
    assert_same(weights, reference)


def test_devices_may_have_cuts_of_their_own() -> None:
    ends: list[tuple[list[Record], Tensors]] = []
    for graphs in (True, False):
        records: list[Record] = []
        with deterministic(1):
            fleet = {**test_cuts.FLEET, **test_cuts.HALVES}
            parts = {"device": DEVICE, "fleet": fleet, "stop": {"epochs": 8.0}}
            assembly = test_cuts.set_up(records, graphs=graphs, **parts)
            assembly.simulation.run()
        assert isinstance(assembly.server_engine, ServerEngine)
        ends.append((records, assembly.server_engine.export()))
    (records, weights), (expected, reference) = ends
    assert [without_metrics(r) for r in records] == [without_metrics(r) for r in expected]
    assert_same(weights, reference)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_every_optimiser_can_be_recorded(optimizer: str) -> None:
    settings = {"name": optimizer, "learning_rate": 0.01, "clip_norm": 1.0}
    training = {"batch_size": 8, "device": settings, "server": settings}
    runs = [played({"name": "fedoptima"}, graphs=g, training=training) for g in (True, False)]
    assert_same(runs[0][1], runs[1][1])


def test_an_evaluation_on_another_stream_waits_for_the_weights_it_was_given() -> None:
    assembly = set_up([], method={"name": "fl"}, device=DEVICE, stop={"epochs": 1.0})
    assert assembly.simulation.run() is not None
    server = assembly.server_engine
    assert isinstance(server, GraphedServer)
    before = server.evaluate()
    sleeping = 200_000_000  # cycles, about 0.1 s: the copy of the weights is far behind
    with server.context(), torch.no_grad():
        torch.cuda._sleep(sleeping)  # type: ignore[no-untyped-call]
        for tensor in server.weights().values():
            tensor.zero_()
    after = server.evaluate()
    torch.cuda.synchronize()
    assert after == server.evaluate()
    assert after != before


def test_all_devices_replay_after_their_first_steps() -> None:
    records: list[Record] = []
    with deterministic(1):
        assembly = set_up(records, device=DEVICE)
        assembly.simulation.run()
    for engine in assembly.device_engines.values():
        assert isinstance(engine, GraphedDevice)
        assert engine._forwards


@pytest.mark.parametrize("method", ["fedoptima", "splitfed", "fl"])
def test_a_run_that_was_stopped_ends_as_the_unbroken_one(method: str, tmp_path: Path) -> None:
    whole = run(method=method, device=DEVICE)
    left = iter(range(60))
    with pytest.raises(Interrupted):
        run(
            method=method, device=DEVICE, out=tmp_path / "run",
            interrupted=lambda: next(left, None) is None,
        )  # fmt: skip
    again = resume(tmp_path / "run", model=network(), train=data(), test=data(48, seed=1))
    assert again.trace_digest == whole.trace_digest
    assert again.weights_digest == whole.weights_digest


def poisoned(where: str) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        rest = nn.Sequential(nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
    (first if where == "device" else rest).insert(0, Poison())
    return nn.Sequential(first, rest)


@pytest.mark.parametrize("codec", ["float32", "int8"])
@pytest.mark.parametrize("where", ["device", "server"])
@pytest.mark.parametrize("row", [0, 17, 50, 95])  # in different batches of different devices
def test_nan_has_the_same_consequence_in_recorded_steps(
    where: str, row: int, codec: str, tmp_path: Path
) -> None:
    inputs, labels = data()
    inputs[row] *= 1000
    ends = []
    for workers in ("auto", 1):
        out = tmp_path / str(workers)
        changes = {"model": poisoned(where), "train": (inputs, labels), "workers": workers}
        method = {"name": "fedoptima", "codec": codec}
        result = run(**changes, method=method, device=DEVICE, epochs=4.0, out=out)
        notes = [
            effect
            for record in read_trace(out / "trace.jsonl.gz")
            for effect in record.effects
            if isinstance(effect, Note) and effect.kind in PROBLEMS
        ]
        assert len(notes) == 1
        ends.append((result.trace_digest, result.weights_digest, notes))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", ["fl", "splitfed", "fedoptima"])
def test_steps_with_a_hook_are_computed_one_by_one_and_a_line_says_so(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def pulled(loss: Tensor, weights: Tensors, received: Tensors) -> Tensor:
        return loss + sum((weights[key] - received[key]).square().sum() for key in weights)

    def method(devices: int) -> Method:
        return replace(METHOD_BUILDERS[name](devices), local_loss=pulled)

    with caplog.at_level(logging.WARNING):
        recorded = run(method=method, device=DEVICE)
    assert caplog.text.count("devices: steps cannot be recorded") == 1
    reference = run(method=method, device=DEVICE, workers=1)
    assert_same(dict(recorded.weights), dict(reference.weights))
