"""Whoever does the tensor work, and in whatever order: the same trace and the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.effects import Note
from fedoptima.core.jobs import ExportModel, Job
from fedoptima.core.machine import Outcome
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.data.custom import as_dataset
from fedoptima.data.loader import Batch, Loader
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.payloads import pack, unpack
from fedoptima.engine.workload import Workload
from fedoptima.experiments.device_engines import device_loader
from fedoptima.experiments.given import Given
from fedoptima.experiments.result import weights_digest
from fedoptima.experiments.setup import assemble, prepare
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.methods.registry import COMPARED
from fedoptima.trace.record import Record
from tests.experiments.runs import CHURN, FLEET, TRAINING, data, network, run
from tests.sim.test_checkpoint import ADAM, RUNS, After, end, go_on

EXECUTORS: dict[str, dict[str, object]] = {"processes": {"workers": 2}}
if torch.cuda.is_available():
    EXECUTORS["cuda"] = {"workers": "auto", "device": "cuda"}
REFERENCE = {"workers": 1}  # inline

NO_MOMENTUM = {**TRAINING, "device": {"learning_rate": 0.05, "momentum": 0.0}}
CASES: Mapping[str, Mapping[str, object]] = {
    **{name: {"method": name} for name in COMPARED},
    **{f"{name} with churn": {"method": name, "fleet": {**FLEET, "churn": CHURN}}
       for name in ("fl", "fedoptima", "splitfed", "pipar", "fedbuff")},
    **{name: RUNS[name] for name in RUNS if "dry" not in name and name not in COMPARED},
    "no momentum": {"training": NO_MOMENTUM, "method": "fl"},
    "adam in fl": {"training": ADAM, "method": "fl"},
    "deltas with momentum": {"method": {"name": "fedbuff", "server_momentum": 0.5}},
    "a second evaluation each epoch": {"training": {**TRAINING, "evaluate_every": 0.5}},
}  # fmt: skip


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", CASES)
def test_every_executor_gives_the_same_run(name: str, executor: str) -> None:
    changes = {**CASES[name], **EXECUTORS[executor]}
    assert end(run(**changes)) == end(run(**{**changes, **REFERENCE}))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    "name", ["fedoptima", "fl", "splitfed", "pipar", "fedbuff", "robust fedoptima"]
)
def test_a_run_goes_on_under_another_executor(name: str, executor: str, tmp_path: Path) -> None:
    unbroken = run(**{**CASES[name], **EXECUTORS[executor], **REFERENCE})
    path, other = tmp_path / "run", {"workers": EXECUTORS[executor]["workers"]}
    with pytest.raises(Interrupted):
        run(**CASES[name], **EXECUTORS[executor], out=path, interrupted=After(unbroken.events // 3))
    with pytest.raises(Interrupted):
        go_on(path, workers=1, interrupted=After(unbroken.events // 3))
    with pytest.raises(Interrupted):
        go_on(path, **other, interrupted=After(unbroken.events // 6))
    assert end(go_on(path, **other)) == end(unbroken)


# ---- values that must not be used ----------------------------------------------------------------

STEPS = 4  # of a device in a round
BAD = NodeId("middle")
WHERE = {"the first batch": STEPS, "a middle batch": STEPS + 1, "the last batch": 2 * STEPS - 1}


class FaultyLoader(Loader):
    """NaN in one batch."""

    step = -1

    def batch(self, step: int) -> Batch:
        inputs, labels = super().batch(step)
        if step == self.step:
            inputs = inputs.clone()
            inputs[0] = torch.nan
        return inputs, labels


class FaultyEngine(DeviceEngine):
    """NaN in its second update."""

    _exported = 0

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        outcome = super().execute(job, result)
        if isinstance(job, ExportModel) and _second(result):
            tensors = {name: tensor.clone() for name, tensor in unpack(outcome.result).items()}
            next(iter(tensors.values())).view(-1)[0] = torch.nan
            return Outcome(pack(result, tensors))
        return outcome


def _second(result: PayloadId) -> bool:
    """The update of the second round: each job of a device has its number in its result's id."""
    return int(result.rsplit("/", 1)[1]) > STEPS + 3


def outcome(method: str, workers: int, step: int | None) -> tuple[list[str], str, list[str]]:
    """Trace, weights and the notes of a run in which one device is faulty.

    ``step``: the one whose batch holds NaN; None: the update does.
    """

    def build(
        recipe: Recipe, workload: Workload, device: NodeId, rows: NDArray[np.int64]
    ) -> DeviceEngine:
        if device != BAD:
            loader = device_loader(recipe, workload, device, rows)
            return DeviceEngine(workload, device, loader, deferred=True)
        if step is None:
            loader = device_loader(recipe, workload, device, rows)
            return FaultyEngine(workload, device, loader, deferred=True)
        loader = device_loader(recipe, workload, device, rows, FaultyLoader)
        assert isinstance(loader, FaultyLoader)
        loader.step = step
        return DeviceEngine(workload, device, loader, deferred=True)

    table = {
        "model": {"name": "custom"},
        "data": {"name": "custom", "partition": {"kind": "iid"}},
        "fleet": FLEET,
        "method": {"name": method},
        "training": TRAINING,
        "split": {"at": 1},
        "stop": {"epochs": 4.0},
    }
    experiment = prepare(
        validate(Recipe, table, "test"), Given(network(), as_dataset(data(), data(48, seed=1)))
    )
    records: list[Record] = []
    with deterministic(1):
        assembly = assemble(experiment, [records.append], build_engine=build, workers=workers)
        try:
            assembly.simulation.run()
            weights = assembly.server_engine.export()  # type: ignore[union-attr]
        finally:
            assembly.executor.close()
    notes = [
        f"{effect.kind} {effect.about}: {effect.text}"
        for record in records
        for effect in record.effects
        if isinstance(effect, Note)
    ]
    return [repr(record) for record in records], weights_digest(weights), notes


@pytest.mark.parametrize("method", ["fl", "fedoptima", "splitfed", "oafl"])
@pytest.mark.parametrize("where", WHERE)
def test_a_batch_with_nan_has_the_same_consequence_at_the_same_event(
    where: str, method: str
) -> None:
    reference = outcome(method, 1, WHERE[where])
    assert any(str(BAD) in note for note in reference[2])
    assert outcome(method, 2, WHERE[where]) == reference


@pytest.mark.parametrize("method", ["fl", "fedoptima", "fedasync"])
def test_an_update_with_nan_has_the_same_consequence_at_the_same_event(
    method: str,
) -> None:
    reference = outcome(method, 1, None)
    assert any(str(BAD) in note for note in reference[2])
    assert outcome(method, 2, None) == reference
