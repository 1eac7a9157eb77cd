"""A hostile device under robust merging over the network: it is refused, and the run replays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedoptima.core.effects import Note
from fedoptima.core.jobs import ExportModel, Job, LoadModel
from fedoptima.core.machine import Outcome
from fedoptima.core.types import PayloadId
from fedoptima.engine.payloads import Tensors, pack, unpack
from fedoptima.trace.reader import read_trace
from fedoptima.verification.replay import replay
from tests.support.network import Gate, Server, start_device, tiny_recipe

NAMES, HOSTILE = [f"d-{number}" for number in range(1, 5)], "d-5"
FLEET = {
    "server": {"gflops": 1.0},
    "devices": [{"name": "d", "count": 5, "gflops": 0.1}],
}


class SignFlip(Gate):
    """Hands in the opposite of what it has learnt, ten times as long."""

    def __init__(self) -> None:
        super().__init__()
        self._base: Tensors = {}

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        outcome = super().execute(job, result)
        if isinstance(job, LoadModel):
            self._base = dict(unpack(job.data))
        if not isinstance(job, ExportModel):
            return outcome
        flipped = {
            name: self._base[name] - 10 * (tensor - self._base[name])
            if name.endswith(("weight", "bias"))
            else tensor
            for name, tensor in unpack(outcome.result).items()
        }
        return replace(outcome, result=pack(result, flipped))


@pytest.mark.parametrize("method", ["fl", "fedoptima"])
def test_a_hostile_device_is_refused_over_the_network_and_the_run_replays(
    method: str, tmp_path: Path
) -> None:
    recipe = tiny_recipe(
        fleet=FLEET, method={"name": method, "robust": "refuse"}, stop={"epochs": 5.0}
    )
    gates = {name: Gate() for name in NAMES} | {HOSTILE: SignFlip()}
    gates[HOSTILE].hold(ExportModel)  # until there is a fleet to compare it with
    with Server(recipe, tmp_path / "run") as server:
        for name, gate in gates.items():
            start_device(name, server.address, tmp_path, gate=gate)
        for name in NAMES:
            gates[name].has_done(ExportModel)
        gates[HOSTILE].hold()
        assert server.result().reason == "5 epochs done"
    records = list(read_trace(server.directory.trace))
    notes = [effect for r in records for effect in r.effects if isinstance(effect, Note)]
    assert HOSTILE in [note.about for note in notes if note.kind == "outlier refused"]
    assert replay(tmp_path / "run", allow_modules=["tests"]).identical
