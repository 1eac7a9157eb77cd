"""What the user gives may fail after hours, and nothing of the run may be lost then."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from fedoptima.core.errors import ConfigError
from tests.experiments.test_tasks import run


def test_a_metric_that_fails_late_loses_nothing_of_the_run(tmp_path: Path) -> None:
    """As a precision does once nothing is predicted positive."""
    seen: list[int] = []

    def fails(predictions: Tensor, labels: Tensor) -> float:
        seen.append(len(labels))
        return 1 / (3 - len(seen))

    out = tmp_path / "run"
    task = {"name": "classification", "metrics": {"odd": fails}}
    with pytest.raises(ConfigError, match="metric 'odd' fails on predictions"):
        run(task, "classification", out=out)
    assert len((out / "metrics.csv").read_text().splitlines()) == 3
    assert (out / "config.json").is_file()
    assert "odd" in (out / "failure.txt").read_text()
    seen[:] = [0, 0]
    with pytest.raises(ConfigError):  # at the first look: nothing is there, so nothing is left
        run(task, "classification", out=tmp_path / "other")
    assert not (tmp_path / "other").exists()
