"""A server captured between two jobs, and put back in other objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedoptima.core.effects import Evaluate, Run
from fedoptima.core.errors import ConfigError, InvariantBroken
from fedoptima.core.events import Disconnected
from fedoptima.core.jobs import Merge, ReusedStep, ServerStep
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.serialization import freeze
from fedoptima.core.server import ServerCore
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.engine.checkpoint import (
    Saved,
    newest_checkpoints,
    payload_tensors,
    restore_checkpoint,
    write_checkpoint,
)
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


def read_checkpoint(path: Path, compute: torch.device) -> Saved:
    return restore_checkpoint(path, compute, lambda saved: saved)


def restored(folder: Path, engine: ServerEngine) -> Restored:
    found = load_server_checkpoint(folder, engine, CPU)
    assert found is not None
    return found


def same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("fl", Merge),
        ("fedbuff", Merge),
        ("splitfed", ServerStep),
        ("pipar", ServerStep),
        ("fedoptima", ServerStep),
        ("fedoptima", Merge),
    ],
)
def test_a_server_is_put_back_as_it_was_and_its_job_is_run_again(
    method: str, kind: type, tmp_path: Path
) -> None:
    still = StandingStill(method, kind)
    still.kept(tmp_path)
    engine = still.fresh_engine()
    found = restored(tmp_path, engine)
    assert freeze(found.core) == freeze(still.core)
    assert found.running == still.running
    assert found.evaluations == (Evaluate(3, 1.5, 9),)
    assert found.timers == {"credit": 7.5}
    assert (found.sessions, found.run, found.incarnation) == ({"d": 17}, "cafe", 2)
    assert (found.now, found.mark, found.number) == (12.25, MARK, 1)
    assert same(engine.export(), still.engine.export())
    # The job's payloads are there, and it comes to the same in either engine.
    for server, order in ((still.engine, still.running), (engine, found.running)):
        assert order is not None
        server.execute(order.job, PayloadId("server/0/999"))
    assert same(engine.export(), still.engine.export())


def test_a_captured_server_goes_on_without_changing_what_was_captured(tmp_path: Path) -> None:
    """Between the three steps of a checkpoint the run goes on."""
    still = StandingStill("splitfed", ServerStep)
    core, weights = freeze(still.core), still.engine.export()
    running = still.running
    captured = still.capture()
    captured.complete(still.engine)
    later = still.simulation.events + 200
    still.simulation.run(lambda: still.simulation.events > later)
    assert not same(still.engine.export(), weights), "nothing was trained meanwhile"
    captured.write(tmp_path, 1, MARK)
    engine = still.fresh_engine()
    found = restored(tmp_path, engine)
    assert freeze(found.core) == core
    assert found.running == running
    assert same(engine.export(), weights)


def test_capturing_touches_no_tensor(tmp_path: Path) -> None:
    """It happens in the event loop; what is large is left for the compute thread."""
    captured = StandingStill("fl", Merge).capture()
    with pytest.raises(InvariantBroken, match="before the engine was asked"):
        captured.write(tmp_path, 1, MARK)
    assert not list(tmp_path.iterdir())


def test_a_server_without_a_job_and_without_a_plan_is_kept_too(tmp_path: Path) -> None:
    assembly = set_up([])
    core, engine = assembly.simulation.server.machine, assembly.server_engine
    captured = capture(
        core,
        ServerProcess(
            running=None,
            timers={},
            evaluations=(),
            sessions={},
            run="cafe",
            incarnation=0,
            now=0.0,
        ),
    )
    captured.complete(engine)
    captured.write(tmp_path, 1, MARK)
    found = load_server_checkpoint(tmp_path, engine, CPU)
    assert found is not None
    assert found.running is None
    assert freeze(found.core) == freeze(core)


def test_where_nothing_was_kept_nothing_is_found(tmp_path: Path) -> None:
    engine = set_up([]).server_engine
    assert load_server_checkpoint(tmp_path / "nowhere", engine, CPU) is None
    (tmp_path / ".000000000001.tmp").mkdir()
    assert load_server_checkpoint(tmp_path, engine, CPU) is None


def test_an_update_in_a_barrier_keeps_its_tensors(tmp_path: Path) -> None:
    still = StandingStill("fl", Merge)
    updates = [part.data for part in still.running.job.parts]  # type: ignore[union-attr]
    assert updates
    still.kept(tmp_path)
    found = restored(tmp_path, still.fresh_engine())
    assert found.running is not None
    assert isinstance(found.running.job, Merge)
    for before, after in zip(updates, (p.data for p in found.running.job.parts), strict=True):
        assert same(before.value, after.value)  # type: ignore[arg-type]
        # As torch aligns its own: the same kernels run, and round alike.
        assert all(t.data_ptr() % 64 == 0 for t in after.value.values())  # type: ignore[attr-defined]


# ---- the folder ----------------------------------------------------------------------------------


def test_the_newest_whole_one_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    still = StandingStill("fl", Merge)
    for number in (1, 2, 3):
        captured = still.capture()
        captured.complete(still.engine)
        captured.write(tmp_path, number, MARK, keep=3)
    third, second, _ = newest_checkpoints(tmp_path)
    (third / "state.json").write_text("{")
    (second / "tensors.safetensors").unlink()
    assert restored(tmp_path, still.fresh_engine()).number == 1
    assert caplog.text.count("not a complete checkpoint") == 2
    for path in newest_checkpoints(tmp_path):
        (path / "state.json").unlink()
    with pytest.raises(ConfigError, match=r"000000000003: not a complete .* restart the run"):
        load_server_checkpoint(tmp_path, still.fresh_engine(), CPU)


@pytest.mark.parametrize("what", ["core", "engine"])
def test_a_checkpoint_that_cannot_be_restored_gives_way_to_the_one_before(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files are as they were written; what they say makes no sense."""
    still = StandingStill("fedoptima", ServerStep)
    good = still.kept(tmp_path, 1)
    saved = read_checkpoint(good, CPU)
    write_checkpoint(tmp_path, 2, {**saved.state, what: ["Nonsense"]}, saved.tensors)
    found = restored(tmp_path, still.fresh_engine())
    assert found.number == 1
    assert "000000000002: cannot be restored" in caplog.text
    assert freeze(found.core) == freeze(restored(tmp_path, still.fresh_engine()).core)


def tensors(value: float) -> dict[str, Tensor]:
    shared = torch.full((4,), value)
    return {"a": shared, "b": shared, "c": shared[1:], "d": shared.view(2, 2).t()}


def test_tensors_that_share_memory_come_back_apart(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 1, {"x": [1, None]}, tensors(2.5))
    saved = read_checkpoint(path, CPU)
    assert same(saved.tensors, tensors(2.5))
    assert len({t.data_ptr() for t in saved.tensors.values()}) == 4
    assert saved.state == {"x": [1, None]}


def test_only_the_last_few_are_kept_and_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / ".000000000009.tmp").mkdir()
    for number in range(1, 6):
        write_checkpoint(tmp_path, number, {"number": number}, tensors(number), keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n:012d}" for n in (3, 4, 5)]
    # After going back to 3, what was made of it is the newest, and 4 and 5 are no more.
    write_checkpoint(tmp_path, 4, {"number": -4}, tensors(4), keep=3)
    newest, *older = newest_checkpoints(tmp_path)
    assert json.loads((newest / "state.json").read_text())["number"] == -4
    assert [path.name for path in older] == [f"{3:012d}"]


def test_a_checkpoint_is_read_or_an_older_one_but_never_a_newer_one(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write_checkpoint(tmp_path, number, {"number": number}, tensors(number), keep=3)
    _, second, first = newest_checkpoints(tmp_path)
    assert read_checkpoint(second, CPU).number == 2
    (first / "state.json").unlink()
    with pytest.raises(ConfigError, match="not a complete"):
        read_checkpoint(first, CPU)


def test_a_change_that_waits_in_a_buffer_is_kept(tmp_path: Path) -> None:
    """It counts as used: its device will not hand it in again."""
    records: list[Record] = []
    assembly = set_up(records, method={"name": "fedbuff"})
    simulation = assembly.simulation

    def one_has_handed_in() -> bool:
        event = records[-1].event if records else None
        return isinstance(getattr(event, "message", None), ModelUpdate)

    simulation.run(one_has_handed_in)
    core = simulation.server.machine
    captured = capture(
        core,
        ServerProcess(
            running=None,
            timers={},
            evaluations=(),
            sessions={NodeId("d"): 3},
            run="cafe",
            incarnation=0,
            now=simulation.now,
        ),
    )
    assert isinstance(assembly.server_engine, ServerEngine)
    captured.complete(assembly.server_engine)
    path = captured.write(tmp_path, 1, MARK)
    update = records[-1].event.message.data  # type: ignore[union-attr]
    saved = read_checkpoint(path, CPU).payloads()
    assert same(saved[update.id], update.value)  # type: ignore[arg-type]
    assert all(node == SERVER for node in read_checkpoint(path, CPU).of_engines())


def test_activations_that_wait_are_not_kept_for_their_devices_will_be_gone(tmp_path: Path) -> None:
    still = StandingStill("fedoptima", ServerStep)
    still.simulation.run(lambda: still.core.training.scheduler.buffered > 0 and bool(still._job()))
    found = restored_from(still, tmp_path)
    kept = read_checkpoint(newest_checkpoints(tmp_path)[0], CPU).payloads()
    step = still.running.job
    assert isinstance(step, ServerStep)
    batches = {name for name, value in kept.items() if "labels" in dict(value)}  # type: ignore[call-overload]
    assert batches == {step.data.id}
    for device, session in sorted(found.core.sessions.items()):
        found.core.handle(Disconnected(device, session), 13.0)
    assert found.core.training.scheduler.buffered == 0


def test_batches_that_may_be_used_again_are_kept_and_used_by_the_next_server(
    tmp_path: Path,
) -> None:
    still = StandingStill("fedoptima", ReusedStep, reuse={"batches": 8, "uses": 9})
    found = restored_from(still, tmp_path)
    assert found.running == still.running
    assert freeze(found.core) == freeze(still.core)
    kept = still.core.training.reuse.kept
    assert kept > 1
    engines = still.engine, still.fresh_engine()
    load_server_checkpoint(tmp_path, engines[1], CPU)
    cores = still.core, found.core
    for core in cores:  # whose devices are gone in the next server
        for device, session in sorted(core.sessions.items()):
            core.handle(Disconnected(device, session), 13.0)
        assert core.training.reuse.kept == kept
    orders = [still.running, found.running]
    for number in range(kept + 1):
        answers = []
        for index, (core, engine) in enumerate(zip(cores, engines, strict=True)):
            order = orders[index]
            assert order is not None
            assert isinstance(order.job, ReusedStep)
            outcome = engine.execute(order.job, PayloadId(f"server/0/{order.ticket}"))
            effects = core.handle(outcome.event(order.ticket, order.job), 14.0 + number)
            answers.append(effects)
            orders[index] = next(e for e in effects if isinstance(e, Run))
        assert answers[0] == answers[1]
    assert same(engines[0].export(), engines[1].export())


def test_what_is_to_be_forgotten_is_in_no_checkpoint(tmp_path: Path) -> None:
    reuse = {"batches": 8, "uses": 2, "on_leave": "forget"}
    still = StandingStill("fedoptima", ReusedStep, reuse=reuse)
    still.kept(tmp_path)
    saved = read_checkpoint(newest_checkpoints(tmp_path)[0], CPU).payloads()
    step = still.running.job
    assert isinstance(step, ReusedStep)
    assert {name for name, value in saved.items() if "labels" in dict(value)} == {step.data.id}  # type: ignore[call-overload]


def restored_from(still: StandingStill, folder: Path) -> Restored:
    still.kept(folder)
    return restored(folder, still.fresh_engine())


@pytest.mark.parametrize("name", ["evil|x", "engine|x|", "100%", "Gerät/0/1", "a~2"])
def test_a_payload_keeps_its_tensors_whatever_its_name(name: str, tmp_path: Path) -> None:
    payloads = {PayloadId(name): {"a|b": torch.ones(2)}, PayloadId("evil"): {"x": torch.zeros(1)}}
    write_checkpoint(tmp_path, 1, {}, payload_tensors(payloads))
    found = read_checkpoint(tmp_path / f"{1:012d}", CPU).payloads()
    assert found.keys() == payloads.keys()
    assert torch.equal(found[PayloadId(name)]["a|b"], torch.ones(2))  # type: ignore[index]


def test_two_payloads_of_one_name_keep_their_own_tensors(tmp_path: Path) -> None:
    """An update named like the model, say: neither is restored with the tensors of the other."""
    still = StandingStill("fl", Merge)
    running = still.running
    assert isinstance(running.job, Merge)
    model = still.core.training.models._model
    assert model is not None
    parts = tuple(
        replace(part, data=Payload(model.id, part.data.nbytes, part.data.value))
        for part in running.job.parts
    )
    still.simulation.server.job = (running.ticket, replace(running.job, parts=parts))
    still.kept(tmp_path)
    found = restored(tmp_path, still.fresh_engine())
    assert found.running is not None
    assert isinstance(found.running.job, Merge)
    for before, after in zip(parts, found.running.job.parts, strict=True):
        assert after.data.id == model.id
        assert same(before.data.value, after.data.value)  # type: ignore[arg-type]
    again = found.core.training.models._model
    assert again is not None
    assert same(model.value, again.value)  # type: ignore[arg-type]
