"""A server that stands still in the middle of a run, to be captured."""

from __future__ import annotations

from pathlib import Path

import torch

from fedoptima.core.effects import Evaluate, Run
from fedoptima.core.server import ServerCore
from fedoptima.core.types import NodeId
from fedoptima.engine.server import ServerEngine
from fedoptima.runtime.server.checkpoint import (
    Captured,
    Restored,
    ServerProcess,
    capture,
    load_server_checkpoint,
)
from fedoptima.sim.driver import Simulation
from fedoptima.trace.record import Record
from fedoptima.trace.writer import Mark
from tests.experiments.runs import set_up

CPU = torch.device("cpu")
MARK = Mark(1234, 56, "ab" * 32)


class StandingStill:
    """A simulated run, stopped where the server has just been given a job of a kind."""

    def __init__(self, method: str, kind: type, after: int = 60, **options: object) -> None:
        records: list[Record] = []
        assembly = set_up(records, method={"name": method, **options})
        assert isinstance(assembly.server_engine, ServerEngine)
        self.engine = assembly.server_engine
        self.simulation: Simulation = assembly.simulation
        self.simulation.run(lambda: len(records) > after and isinstance(self._job(), kind))
        assert self.simulation.outcome is None, "the run never gets there"

    def _job(self) -> object:
        job = self.simulation.server.job
        return job[1] if job else None

    @property
    def core(self) -> ServerCore:
        return self.simulation.server.machine

    @property
    def running(self) -> Run:
        assert self.simulation.server.job is not None
        return Run(*self.simulation.server.job)

    def capture(self) -> Captured:
        return capture(
            self.core,
            ServerProcess(
                running=self.running,
                timers={"credit": 7.5},
                evaluations=[Evaluate(3, 1.5, 9)],
                sessions={NodeId("d"): 17},
                run="cafe",
                incarnation=2,
                now=12.25,
            ),
        )

    def kept(self, folder: Path, number: int = 1) -> Path:
        captured = self.capture()
        captured.complete(self.engine)
        return captured.write(folder, number, MARK)

    def fresh_engine(self) -> ServerEngine:
        return ServerEngine(self.engine._workload)


def restored(folder: Path, engine: ServerEngine) -> Restored:
    found = load_server_checkpoint(folder, engine, CPU)
    assert found is not None
    return found


def restored_from(still: StandingStill, folder: Path) -> Restored:
    still.kept(folder)
    return restored(folder, still.fresh_engine())
