"""Which tensors a checkpoint of a server keeps: updates, and batches that will be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedoptima.core.effects import Run
from fedoptima.core.events import Disconnected
from fedoptima.core.jobs import Merge, ReusedStep, ServerStep
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.serialization import freeze
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.engine.checkpoint import newest_checkpoints
from fedoptima.engine.server import ServerEngine
from fedoptima.runtime.server.checkpoint import ServerProcess, capture, load_server_checkpoint
from fedoptima.trace.record import Record
from tests.engine.bench import read_checkpoint, same
from tests.experiments.runs import set_up
from tests.runtime.server.standing_still import CPU, MARK, StandingStill, restored, restored_from


def test_an_update_in_a_barrier_keeps_its_tensors(tmp_path: Path) -> None:
    still = StandingStill("fl", Merge, on_leave="drop")
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
    saved = read_checkpoint(path).payloads()
    assert same(saved[update.id], update.value)  # type: ignore[arg-type]
    assert all(node == SERVER for node in read_checkpoint(path).of_engines())


def test_activations_that_wait_are_not_kept_for_their_devices_will_be_gone(tmp_path: Path) -> None:
    still = StandingStill("fedoptima", ServerStep)
    still.simulation.run(lambda: still.core.training.scheduler.buffered > 0 and bool(still._job()))
    found = restored_from(still, tmp_path)
    kept = read_checkpoint(newest_checkpoints(tmp_path)[0]).payloads()
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
    saved = read_checkpoint(newest_checkpoints(tmp_path)[0]).payloads()
    step = still.running.job
    assert isinstance(step, ReusedStep)
    assert {name for name, value in saved.items() if "labels" in dict(value)} == {step.data.id}  # type: ignore[call-overload]


def test_two_payloads_of_one_name_keep_their_own_tensors(tmp_path: Path) -> None:
    """An update named like the model, say: neither is restored with the tensors of the other."""
    still = StandingStill("fl", Merge, on_leave="drop")
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
