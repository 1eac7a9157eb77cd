"""Devices with cuts of their own: the whole way through a simulated run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.effects import Note, NoteKind, Send
from fedoptima.core.errors import ConfigError
from fedoptima.core.events import JobDone, Received
from fedoptima.core.jobs import CutStep, Prepare
from fedoptima.core.messages import Assignment, GlobalModel
from fedoptima.core.types import SERVER
from fedoptima.data.custom import as_dataset
from fedoptima.experiments.assembly import Assembly
from fedoptima.experiments.given import Given
from fedoptima.experiments.result import Result
from fedoptima.experiments.setup import assemble, prepare
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.experiments.simulation import resume, simulate
from fedoptima.sim.driver import Simulation
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.verification.replay import replay
from tests.experiments.runs import TRAINING, data, without_metrics

CUTS = {"wired": 1, "wifi": 2, "mobile": 3}
FLEET: dict[str, Any] = {
    "server": {"gflops": 0.05},
    "devices": [
        {"name": "wired", "gflops": 0.002, "mbps": 2.0},
        {"name": "wifi", "gflops": 0.01, "mbps": 0.5},
        {"name": "mobile", "gflops": 0.01, "mbps": 0.25},
    ],
}
HALVES = {"changes": [{"at": 1.5, "device": "wifi", "kind": "bandwidth", "mbps": 0.25}]}
EVERYTHING = {"codec": "int8", "update_codec": "int8", "reuse": True, "train_every": 2}


def network() -> nn.Sequential:
    """Three cuts that pay, each with more work and less to send than the one before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(8, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
        )


def model(channels: int, image_size: int, classes: int) -> nn.Module:
    """The same, as recipes name it."""
    return network()


def given() -> dict[str, Any]:
    return {"model": network(), "train": data(), "test": data(48, seed=1)}


def run(**changes: object) -> Result:
    usual: dict[str, Any] = {
        "data": {"partition": {"kind": "iid"}},
        "fleet": FLEET,
        "method": "fedoptima",
        "training": TRAINING,
        "split": {"per_device": True},
        "epochs": 3.0,
        "seed": 1,
    }
    return simulate(**{**given(), **usual, **changes})


def set_up(
    records: list[Record],
    *,
    dry: bool = False,
    graphs: bool = True,
    model: nn.Module | None = None,
    **parts: object,
) -> Assembly:
    table = {
        "model": {"name": "custom"},
        "data": {"name": "custom", "partition": {"kind": "iid"}},
        "fleet": FLEET,
        "training": TRAINING,
        "split": {"per_device": True},
        "stop": {"epochs": 3.0},
        **parts,
    }
    parts_given = Given(model or network(), as_dataset(data(), data(48, seed=1)))
    experiment = prepare(validate(Recipe, table, "test"), parts_given)
    return assemble(experiment, [records.append], dry=dry, graphs=graphs)


def drive(assembly: Assembly) -> Simulation:
    """To the end, with every invariant checked after every event."""

    def check() -> bool:
        for machine in (simulation.server.machine, *(d.machine for d in devices)):
            machine.check()
        return False

    simulation, devices = assembly.simulation, assembly.simulation.devices.values()
    simulation.run(pause=check)
    return simulation


def notes(records: list[Record], kind: NoteKind) -> Iterator[tuple[Record, Note]]:
    for record in records:
        for effect in record.effects:
            if isinstance(effect, Note) and effect.kind == kind:
                yield record, effect


# ---- a run ---------------------------------------------------------------------------------------


def test_every_device_trains_the_blocks_that_are_best_for_it_and_the_server_the_rest() -> None:
    records: list[Record] = []
    simulation = drive(set_up(records))
    assert {name: d.machine.cut for name, d in simulation.devices.items()} == CUTS
    steps = [r.event.job for r in records if r.node == SERVER and isinstance(r.event, JobDone)]
    entered = {(step.origin, step.cut) for step in steps if isinstance(step, CutStep)}
    assert entered == set(CUTS.items())
    sizes = {
        effect.to: effect.message.data.nbytes
        for record in records
        for effect in record.effects
        if isinstance(effect, Send) and isinstance(effect.message, GlobalModel)
    }
    assert len(set(sizes.values())) == 3  # each is sent its own blocks and network


def test_a_dry_run_has_the_same_trace() -> None:
    real: list[Record] = []
    dry: list[Record] = []
    drive(set_up(real, fleet={**FLEET, **HALVES}))
    drive(set_up(dry, dry=True, fleet={**FLEET, **HALVES}))
    assert [without_metrics(r) for r in real] == [without_metrics(r) for r in dry]


@pytest.mark.parametrize(
    "options", [{"overlap": True}, pytest.param(EVERYTHING, marks=pytest.mark.slow)]
)
def test_the_record_proves_the_run_and_its_weights(
    options: dict[str, object], tmp_path: Path
) -> None:
    churn = {"every": 0.5, "leave_probability": 0.3, "mbps": [0.2, 2.0]}
    run(
        method={"name": "fedoptima", **options}, fleet={**FLEET, "churn": churn}, out=tmp_path / "r"
    )
    found = replay(tmp_path / "r", weights=True, **given())
    assert found.difference is None
    assert found.weights is not None
    assert found.weights.executed == found.weights.recorded


def test_a_run_that_was_interrupted_comes_to_the_same_weights(tmp_path: Path) -> None:
    options: dict[str, object] = {"method": {"name": "fedoptima", **EVERYTHING}}
    whole = run(fleet={**FLEET, **HALVES}, **options)
    asked = iter(range(10_000))
    with pytest.raises(Interrupted):
        run(
            fleet={**FLEET, **HALVES},
            out=tmp_path / "run",
            interrupted=lambda: next(asked) > 60,
            **options,
        )
    resumed = resume(tmp_path / "run", **given())
    assert resumed.weights_digest == whole.weights_digest
    assert resumed.trace_digest == whole.trace_digest
    assert whole.best_accuracy > 0.6


def test_the_servers_memory_does_not_grow_with_the_devices() -> None:
    def tensors(count: int) -> set[str]:
        devices = [{**group, "count": count} for group in FLEET["devices"]]
        assembly = set_up([], fleet={**FLEET, "devices": devices}, stop={"epochs": 0.5})
        assembly.simulation.run()
        _, found = assembly.server_engine.save()
        return {name for name in found if not name.startswith("deferred.")}

    assert tensors(1) == tensors(3)


def test_what_the_server_holds_is_counted() -> None:
    memory = run(epochs=0.5).summary.memory
    blocks = sum(t.numel() * t.element_size() for t in network().state_dict().values())
    assert memory.peak_models > blocks  # all of them, and three auxiliary networks


def test_the_server_has_something_to_train_behind_every_cut() -> None:
    model = network()
    model[3].requires_grad_(False)
    records: list[Record] = []
    simulation = drive(set_up(records, model=model, stop={"epochs": 1.0}))
    cuts = {name: device.machine.cut for name, device in simulation.devices.items()}
    assert cuts == {"wired": 1, "wifi": 2, "mobile": 2}
    assert not list(notes(records, NoteKind.PEER_DROPPED))
    model[1:].requires_grad_(False)
    with pytest.raises(ConfigError, match="the server has nothing to train"):
        run(model=model)


# ---- another plan --------------------------------------------------------------------------------


def test_a_link_that_halves_is_planned_for_again_and_the_trace_shows_it() -> None:
    records: list[Record] = []
    simulation = drive(set_up(records, fleet={**FLEET, **HALVES}, stop={"epochs": 8.0}))
    assert simulation.devices["wifi"].machine.cut == 3
    ((record, note),) = notes(records, NoteKind.REPLANNED)
    assert note.about == "wifi"
    assert "3 instead of 2" in note.text
    assert "0.25 Mbit/s" in note.text
    assert record.at > 1.5
    again = [r for r in records if r.node == "wifi" and isinstance(r.event, Received)]
    plans = [r.event.message for r in again if isinstance(r.event.message, Assignment)]
    assert [plan.program.cut for plan in plans] == [2, 3]
    prepared = [r for r in records if r.node == "wifi" and isinstance(r.event, JobDone)]
    assert sum(isinstance(r.event.job, Prepare) for r in prepared) == 2
    steps = [r.event.job for r in records if r.node == SERVER and isinstance(r.event, JobDone)]
    entered = [s.cut for s in steps if isinstance(s, CutStep) and s.origin == "wifi"]
    assert entered[0] == 2
    assert entered[-1] == 3
    assert sorted(entered) == entered  # batches of the old cut may wait, and come first


def test_a_fleet_that_stays_as_it_is_keeps_its_plan() -> None:
    records: list[Record] = []
    drive(set_up(records, stop={"epochs": 8.0}))
    assert not list(notes(records, NoteKind.REPLANNED))


# ---- where it does not go ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fl", "splitfed", "cse_fsl"])
def test_methods_that_cannot_have_cuts_of_single_devices_say_so(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} cannot give devices cuts of their own"):
        run(method=name)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": {"name": "fedoptima", "auxiliary": "none"}}, "with an auxiliary network"),
        ({"method": {"name": "fedoptima", "robust": "clip"}}, "updates of all devices"),
        ({"split": {"per_device": True, "at": 1}}, "leave either out"),
        ({"split": {"batch_seconds": 1.0}}, "add per_device = true"),
    ],
)
def test_settings_that_do_not_go_with_them_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        run(**changes)


def test_the_trace_on_disk_holds_the_plan_of_every_device(tmp_path: Path) -> None:
    run(out=tmp_path / "r", epochs=1.0)
    server = read_trace(tmp_path / "r" / "trace.jsonl.gz")
    plans = [
        json.loads(effect.message.plan)["split"]
        for record in server
        for effect in record.effects
        if isinstance(effect, Send) and isinstance(effect.message, Assignment)
    ]
    assert sorted(plans) == [1, 2, 3]
