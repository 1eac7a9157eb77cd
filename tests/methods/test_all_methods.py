"""What holds for every method with real tensors: determinism, churn, dry runs, the ablations."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from fedoptima.core.errors import ConfigError
from fedoptima.core.events import Connected, Disconnected, Evaluated
from fedoptima.core.types import SERVER
from fedoptima.engine.server import ServerEngine
from fedoptima.experiments.simulation import simulate
from fedoptima.methods.registry import COMPARED, method_options
from fedoptima.trace.record import Record
from tests.experiments.runs import CHURN, FLEET, run, set_up, without_metrics
from tests.methods.runs import MOST_RECORDS

Options = dict[str, object]

VARIANTS: list[Options] = [
    *({"name": name} for name in COMPARED),
    {"name": "pipar", "micro_batches": 3},
    {"name": "pipar", "on_leave": "drop"},
    {"name": "fl", "on_leave": "drop"},
    {"name": "splitfed", "on_leave": "drop"},
    {"name": "splitfed", "on_leave": "wait"},
    {"name": "splitfed", "barrier_timeout": 0.05},
    {"name": "fl", "on_leave": "wait"},
    {"name": "pipar", "on_leave": "keep"},
    {"name": "fedasync", "max_delay": 1},
    {"name": "oafl", "max_delay": 1},
    {"name": "fedbuff", "buffer": 2, "server_learning_rate": 0.7, "server_momentum": 0.9},
]
EVERY = pytest.mark.parametrize(
    "method", VARIANTS, ids=lambda options: " ".join(str(value) for value in options.values())
)


def unstable(method: Options) -> Options:
    """A barrier that waits opens only if a round of whoever left fits between two changes."""
    waits = method.get("on_leave", method_options(str(method["name"])).get("on_leave")) == "wait"
    churn = {**CHURN, "every": 0.1 if waits else 0.06, "leave_probability": 0.4}
    return {**FLEET, "churn": churn}


@pytest.mark.parametrize("name", COMPARED)
def test_the_same_recipe_and_seed_give_the_same_run(name: str) -> None:
    fleet = unstable({"name": name})
    first, again = (run(method=name, fleet=fleet, epochs=1.0) for _ in range(2))
    assert first.trace_digest == again.trace_digest
    assert first.weights_digest == again.weights_digest
    assert first.curve == again.curve


@EVERY
def test_devices_may_come_and_go(method: Options) -> None:
    records: list[Record] = []
    assembly = set_up(records, method=method, fleet=unstable(method), stop={"epochs": 3.0})
    simulation = assembly.simulation

    def too_long() -> bool:
        simulation.server.machine.check()
        for device in simulation.devices.values():
            device.machine.check()
        return len(records) > MOST_RECORDS

    outcome = simulation.run(too_long)
    assert outcome is not None
    assert not outcome.failed
    assert outcome.reason == "3 epochs done"
    events = [record.event for record in records if record.node == SERVER]
    assert sum(isinstance(event, Disconnected) for event in events) >= 3
    assert sum(isinstance(event, Connected) for event in events) >= 3 + 2  # all, and some again
    engine = assembly.server_engine
    assert isinstance(engine, ServerEngine)
    for name, tensor in engine.export().items():
        assert torch.isfinite(tensor).all(), name
        assert not name.endswith("running_var") or (tensor > 0).all(), name


@pytest.mark.parametrize("stable", [True, False], ids=["stable", "churn"])
@EVERY
def test_a_dry_run_makes_the_trace_of_the_real_one(method: Options, stable: bool) -> None:
    traces: list[list[Record]] = []
    for dry in (False, True):
        records: list[Record] = []
        fleet = FLEET if stable else unstable(method)
        simulation = set_up(
            records, dry=dry, method=method, fleet=fleet, stop={"epochs": 2.0}
        ).simulation
        assert simulation.run(lambda seen=records: len(seen) > MOST_RECORDS) is not None
        traces.append(records)
    real, dry_one = traces
    assert any(isinstance(record.event, Evaluated) for record in real)
    assert [without_metrics(record) for record in real] == dry_one


def test_every_auxiliary_network_trains_and_each_differently() -> None:
    results = {
        kind: run(method={"name": "fedoptima", "auxiliary": kind})
        for kind in ("none", "classifier", "default", "deep", 3)
    }
    for one, other in combinations(results, 2):
        assert results[one].weights_digest != results[other].weights_digest, (one, other)
    for kind, result in results.items():
        assert result.server_samples > 0
        assert result.accuracy is not None
        assert result.accuracy > 0.5, kind  # of three classes
    # Without one, every batch a device learns from has been through the server.
    assert results["none"].server_samples >= results["none"].device_samples
    sizes = [
        results[kind].bytes_down / results[kind].versions for kind in ("classifier", "default")
    ]
    assert sizes[0] != sizes[1]


def test_the_schedulers_serve_the_same_devices_in_another_order() -> None:
    slow_server = {**FLEET, "server": {"gflops": 0.003}}
    counter, fifo = (
        run(
            method={"name": "fedoptima", "scheduler": kind, "activation_cap": 6},
            fleet=slow_server,
            epochs=6.0,
        )
        for kind in ("counter", "fifo")
    )
    assert counter.trace_digest != fifo.trace_digest
    assert counter.weights_digest != fifo.weights_digest
    assert min(counter.server_samples, fifo.server_samples) > 0


def test_a_device_with_few_samples_gets_no_more_parts_than_it_has() -> None:
    rows = torch.arange(27)
    inputs, labels = torch.randn(27, 8, generator=torch.Generator().manual_seed(0)), rows % 3
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    result = simulate(
        model=model,
        train=(inputs, labels),
        test=(inputs, labels),
        data={"partition": {"kind": "iid"}},
        fleet={
            "server": {"gflops": 1.0},
            "devices": [{"name": "device", "count": 9, "gflops": 0.01}],
        },
        method={"name": "pipar", "micro_batches": 4},
        training={"batch_size": 10},
        stop={"rounds": 2},
    )
    assert result.accuracy is not None
    assert all(torch.isfinite(tensor).all() for tensor in result.weights.values())


def test_more_parts_than_a_batch_has_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'micro_batches': 99}: .*'batch_size': .*at most"):
        run(method={"name": "pipar", "micro_batches": 99})
