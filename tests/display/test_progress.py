"""What is said of a run while it goes on."""

from __future__ import annotations

import pytest

from fedoptima.analysis.idle_time import Usage
from fedoptima.config.load import load_recipe
from fedoptima.core.progress import Progress
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId
from fedoptima.display.progress import RunProgress
from tools.records import ROOT


def test_devices_are_as_busy_as_the_result_will_say() -> None:
    recipe = load_recipe(ROOT / "recipes" / "demo_digits.toml")
    devices = {NodeId("all run"): Usage(9.0, 1.0, 0.0), NodeId("a second"): Usage(0.2, 0.8, 0.0)}
    usage = {SERVER: Usage(3.0, 6.0, 0.0, 1.0), **devices, NodeId("late"): Usage(0.0, 0.0, 0.0)}
    said = RunProgress.of(
        recipe, Progress(StopRule(epochs=2), 1.0), now=10.0, began=0.0, quality=None, usage=usage
    )
    assert said.server == pytest.approx(0.3)
    assert said.reused == pytest.approx(0.1)
    assert said.devices == pytest.approx(9.2 / 11)  # by their time in the run, not one by one
