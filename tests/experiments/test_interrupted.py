from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.experiments.simulation import resume
from tests.experiments.runs import data, network, run


def after(questions: int) -> Callable[[], bool]:
    """Says yes when it has been asked that many times."""
    asked = 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        return asked > questions

    return interrupted


@pytest.mark.parametrize("events", [0, 7, 60, 201])
def test_an_interrupted_run_is_kept_and_goes_on_as_if_it_had_not_been(
    tmp_path: Path, events: int
) -> None:
    unbroken = run()
    with pytest.raises(Interrupted, match="stopped at"):
        run(out=tmp_path / "run", checkpoint_every=1e9, interrupted=after(events))
    kept = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert len(kept) == 1
    stopped = tmp_path / "run" / "stopped.txt"  # who looks at it sees that nobody killed it
    assert "stopped at" in stopped.read_text()
    result = resume(tmp_path / "run", model=network(), train=data(), test=data(48, seed=1))
    assert not stopped.exists()
    assert result.trace_digest == unbroken.trace_digest
    assert result.weights_digest == unbroken.weights_digest


def test_without_a_folder_an_interrupted_run_just_ends() -> None:
    with pytest.raises(Interrupted):
        run(interrupted=after(20))


def test_a_run_that_could_not_begin_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="split"):
        run(out=tmp_path / "run", split={"at": 9})
    assert not (tmp_path / "run").exists()
