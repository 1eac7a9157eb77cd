"""One run among others."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedoptima.comparison.execution import Order
from tests.comparison.recipes import tiny


@pytest.mark.parametrize(
    ("device", "asked", "told"),
    [("cpu", "auto", 1), ("cpu", 2, 2), ("cuda", "auto", "auto"), ("cuda:1", 1, 1)],
)
def test_a_run_among_others_uses_one_core_and_on_a_gpu_recorded_steps(
    device: str, asked: int | str, told: int | str, tmp_path: Path
) -> None:
    recipe = tiny(tmp_path).model_copy(update={"device": device, "workers": asked})
    order = Order(recipe, tmp_path / "run", dry=False, checkpoint_every=60.0)
    assert order.executor == told
