"""The same fault on one device, in a simulation and over the network: same note, same end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from fedoptima.config.schema import Recipe
from fedoptima.core.effects import PROBLEMS, Note, NoteKind
from fedoptima.core.errors import FedOptimaError, TrainingDiverged
from fedoptima.core.events import Connected
from fedoptima.core.jobs import ExportModel, Forward, Job
from fedoptima.core.machine import Outcome
from fedoptima.core.types import SERVER, NodeId, PayloadId
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.payloads import Tensors, pack, unpack
from fedoptima.experiments.setup import assemble, prepare
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from tests.support.network import NAMES, Gate, Server, start_device, tiny_recipe

FAULTY = NodeId("middle")

Fault = Callable[[Job, Outcome], Outcome]


def altered(kind: type[Job], change: Callable[[Tensors], Tensors]) -> Fault:
    """Whatever a job of this kind puts out is changed."""

    def fault(job: Job, outcome: Outcome) -> Outcome:
        if not isinstance(job, kind):
            return outcome
        return replace(outcome, result=pack(outcome.result.id, change(unpack(outcome.result))))

    return fault


def raised(kind: type[Job], error: Exception) -> Fault:
    def fault(job: Job, outcome: Outcome) -> Outcome:
        if isinstance(job, kind):
            raise error
        return outcome

    return fault


def nan(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: tensors[name] * float("nan")}


def one_channel_less(tensors: Tensors) -> Tensors:
    return {**tensors, "activations.0": tensors["activations.0"][:, 1:]}


def unknown_label(tensors: Tensors) -> Tensors:
    return {**tensors, "labels": tensors["labels"] + 7}


def times(name: str, factor: float) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: tensors[name] * factor}


def set_to(name: str, value: float) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: tensors[name].clone().fill_(value)}


WRONG_DATA: dict[str, tuple[Fault, str, str]] = {
    "infinite activations": (
        altered(Forward, set_to("activations.0", float("inf"))),
        "peer dropped",
        "activations.0 holds values outside",
    ),
    "absurd activations": (
        altered(Forward, set_to("activations.0", 1e38)),
        "peer dropped",
        "activations.0 holds values outside",
    ),
    "infinite update": (
        altered(ExportModel, set_to("0.0.weight", float("-inf"))),
        "peer dropped",
        "0.0.weight holds values outside",
    ),
    "absurd update": (
        altered(ExportModel, set_to("0.0.weight", -1e38)),
        "peer dropped",
        "0.0.weight holds values outside",
    ),
    "negative variance": (
        altered(ExportModel, set_to("0.1.running_var", -1.0)),
        "peer dropped",
        "0.1.running_var holds values outside 0 to ",
    ),
    "NaN activations": (
        altered(Forward, nan("activations.0")),
        "peer dropped",
        "activations.0 holds NaN",
    ),
    "NaN update": (altered(ExportModel, nan("0.0.weight")), "peer dropped", "0.0.weight holds NaN"),
    "wrong shape": (
        altered(Forward, one_channel_less),
        "peer dropped",
        "tensor 'activations.0' is (8, 3, 4, 4)",
    ),
    "unknown label": (altered(Forward, unknown_label), "peer dropped", "labels from 7 to 9"),
}
FAILURES: dict[str, tuple[Fault, str, str]] = {
    "failing job": (
        raised(Forward, ValueError("too few samples")),
        "device failed",
        "ValueError: too few samples",
    ),
    "diverged device": (
        raised(ExportModel, TrainingDiverged("the loss is not finite")),
        "device failed",
        "the loss is not finite",
    ),
}


class FaultyEngine(DeviceEngine):
    """A simulated device's; over the network it is a `FaultyGate`."""

    fault: Fault

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        return self.fault(job, super().execute(job, result))


class FaultyGate(Gate):
    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._fault = fault

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        return self._fault(job, super().execute(job, result))


@dataclass(frozen=True)
class Told:
    """How the server saw it."""

    notes: list[Note]  # about devices in trouble
    came_back: bool
    end: str

    @staticmethod
    def by(records: Iterable[Record], end: str) -> Told:
        own = [record for record in records if record.node == SERVER]
        notes = [e for r in own for e in r.effects if isinstance(e, Note) and e.kind in PROBLEMS]
        joined = [r for r in own if isinstance(r.event, Connected) and r.event.peer == FAULTY]
        return Told(notes, len(joined) > 1, end)


def simulated(recipe: Recipe, fault: Fault) -> Told:
    records: list[Record] = []
    with deterministic(1):
        assembly = assemble(prepare(recipe), [records.append])
        engine = assembly.device_engines[FAULTY]
        assert isinstance(engine, DeviceEngine)
        faulty = FaultyEngine(engine._workload, FAULTY, engine._loader, deferred=True)
        faulty.fault = fault
        cast(dict[NodeId, DeviceEngine], assembly.device_engines)[FAULTY] = faulty
        halt = assembly.simulation.run()
    assert halt is not None
    return Told.by(records, halt.reason)


def networked(recipe: Recipe, fault: Fault, folder: Path) -> Told:
    with Server(recipe, folder / "run") as server:
        gates = {FAULTY: FaultyGate(fault)}
        for name in NAMES:
            start_device(name, server.address, folder, gate=gates.get(NodeId(name)))
        try:
            end = server.result().reason
        except FedOptimaError as error:
            end = str(error).partition(" (the trace is in")[0]
    return Told.by(read_trace(server.directory.trace), end)


# The same note and the same consequence in both drivers:


@pytest.mark.parametrize("name", WRONG_DATA)
def test_a_device_sends_data_that_does_not_match_the_plan(name: str, tmp_path: Path) -> None:
    check_alike(*WRONG_DATA[name], tmp_path)


@pytest.mark.parametrize("name", FAILURES)
def test_training_diverges_on_a_device_or_a_job_fails_there(name: str, tmp_path: Path) -> None:
    check_alike(*FAILURES[name], tmp_path)


def check_alike(fault: Fault, kind: str, text: str, folder: Path) -> None:
    recipe = tiny_recipe()
    simulation, network = simulated(recipe, fault), networked(recipe, fault, folder)
    assert simulation == network
    (note,) = simulation.notes
    assert (note.kind, note.about) == (kind, FAULTY)
    assert note.text.startswith(text)
    assert not simulation.came_back
    assert simulation.end == "2 epochs done"


@pytest.mark.parametrize("name", ["NaN activations", "diverged device"])
def test_a_run_that_is_to_end_with_a_divergence_ends_alike_in_both_drivers(
    name: str, tmp_path: Path
) -> None:
    fault, kind, text = {**WRONG_DATA, **FAILURES}[name]
    recipe = tiny_recipe(training={"batch_size": 8, "on_divergence": "end"})
    simulation, network = simulated(recipe, fault), networked(recipe, fault, tmp_path)
    assert simulation == network
    assert simulation.notes[0].kind == kind
    said = repr(text) if kind == NoteKind.DEVICE_FAILED else text  # a device's words are quoted
    assert simulation.end.startswith(f"{FAULTY}: {said}")


# Values that are admitted, and that the server's side of the model cannot take.
AT_THE_SERVER = {"picky": "IndexError: ", "exploding": "its data would have made the server's"}


@pytest.mark.parametrize("model", AT_THE_SERVER)
def test_a_batch_that_the_server_cannot_train_on_takes_its_device_out_in_both_drivers(
    model: str, tmp_path: Path
) -> None:
    recipe = tiny_recipe(model={"name": f"tests.e2e.tiny:{model}"})
    fault = altered(Forward, times("activations.0", 200))
    simulation, network = simulated(recipe, fault), networked(recipe, fault, tmp_path)
    assert simulation.notes == network.notes
    (note,) = simulation.notes
    assert (note.kind, note.about) == ("peer dropped", FAULTY)
    assert note.text.startswith(AT_THE_SERVER[model])
    assert simulation.end == network.end == "2 epochs done"
    assert not simulation.came_back


def test_a_loss_at_the_server_that_is_not_finite_ends_a_run_that_is_to_end(tmp_path: Path) -> None:
    training = {"batch_size": 8, "on_divergence": "end"}
    recipe = tiny_recipe(model={"name": "tests.e2e.tiny:exploding"}, training=training)
    fault = altered(Forward, times("activations.0", 200))
    simulation, network = simulated(recipe, fault), networked(recipe, fault, tmp_path)
    assert simulation.end == network.end
    assert simulation.end.startswith(f"{FAULTY}: its data would have made the server's")
