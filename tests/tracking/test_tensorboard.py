from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorboard", reason="needs pip install 'fedoptima[track]'")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedoptima.analysis.metrics import evaluations
from fedoptima.core.errors import ConfigError
from fedoptima.core.events import Evaluated
from fedoptima.tracking.tensorboard import TensorBoard
from fedoptima.tracking.tracker import Ending
from tests.tracking.moments import moment_of, records_of, subject_of


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def evaluated_at(count: int) -> int:
    """The place right after the evaluation with this number."""
    places = [
        place
        for place, record in enumerate(records_of("fedoptima"), 1)
        if isinstance(record.event, Evaluated)
    ]
    return places[count - 1]


def test_each_evaluation_is_a_step_in_the_runs_own_folder(tmp_path: Path) -> None:
    records = records_of("fedoptima")
    board = TensorBoard(subject_of(Path("runs/mine")), tmp_path)
    board.observe(moment_of(records[: evaluated_at(1)]))
    board.observe(moment_of(records[: evaluated_at(1) + 1]))
    end = moment_of(records).summary
    board.finish(Ending(end, {}, ()))
    board.close()
    found = scalars(tmp_path / "mine")
    rows = list(evaluations(end.curve))
    assert len(rows) >= 3
    assert found["accuracy"] == [
        (step, pytest.approx(row["accuracy"], rel=1e-6)) for step, row in enumerate(rows, 1)
    ]
    last_step, share = found["idle/server_type_1_ratio"][-1]
    assert last_step == len(rows)
    assert share == pytest.approx(end.server_usage.idle_1_share, rel=1e-6)


def test_the_time_between_steps_is_that_of_the_run(tmp_path: Path) -> None:
    end = moment_of(records_of("fedoptima")).summary
    board = TensorBoard(subject_of(Path("mine")), tmp_path)
    board.finish(Ending(end, {}, ()))
    board.close()
    events = EventAccumulator(str(tmp_path / "mine"))
    events.Reload()
    first, *_, last = [event.wall_time for event in events.Scalars("loss")]
    assert last - first == pytest.approx(end.curve[-1].seconds - end.curve[0].seconds, abs=1e-3)


def test_a_resumed_run_takes_back_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    records = records_of("fedoptima")
    before = TensorBoard(subject_of(Path("mine")), tmp_path)
    for step in (1, 2, 3):
        before.observe(moment_of(records[: evaluated_at(step)]))
    before.close()
    after = TensorBoard(subject_of(Path("mine"), resumed=True), tmp_path)
    after.observe(moment_of(records[: evaluated_at(2)]))  # resumed from right here
    after.observe(moment_of(records[: evaluated_at(3)]))
    after.close()
    found = scalars(tmp_path / "mine")
    for tag in ("accuracy", "idle/server_type_1_ratio"):
        assert [step for step, _ in found[tag]] == [1, 2, 3]


def test_a_folder_that_cannot_be_made_is_the_users_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--tensorboard .*choose another folder"):
        TensorBoard(subject_of(Path("mine")), tmp_path / "file")
