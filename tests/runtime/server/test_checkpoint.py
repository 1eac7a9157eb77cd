"""A server captured between two jobs, and put back in other objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedoptima.core.effects import Evaluate
from fedoptima.core.errors import ConfigError, InvariantBroken
from fedoptima.core.jobs import Merge, ServerStep
from fedoptima.core.serialization import freeze
from fedoptima.core.types import PayloadId
from fedoptima.engine.checkpoint import newest_checkpoints, write_checkpoint
from fedoptima.runtime.server.checkpoint import ServerProcess, capture, load_server_checkpoint
from tests.engine.bench import read_checkpoint, same
from tests.experiments.runs import set_up
from tests.runtime.server.standing_still import CPU, MARK, StandingStill, restored


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
    saved = read_checkpoint(good)
    write_checkpoint(tmp_path, 2, {**saved.state, what: ["Nonsense"]}, saved.tensors)
    found = restored(tmp_path, still.fresh_engine())
    assert found.number == 1
    assert "000000000002: cannot be restored" in caplog.text
    assert freeze(found.core) == freeze(restored(tmp_path, still.fresh_engine()).core)
