"""A share of the devices in each round, with tensors, in both drivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.experiments.simulation import resume, simulate
from fedoptima.verification.replay import replay
from tests.experiments.runs import FLEET, arguments, run
from tests.support.network import NAMES, Server, start_device, tiny_recipe

EVERY = pytest.mark.parametrize("name", ["fl", "splitfed", "pipar"])


@EVERY
def test_a_run_is_resumed_and_replayed(name: str, tmp_path: Path) -> None:
    method = {"name": name, "participation": 0.34}
    whole, left = run(method=method), iter(range(60))
    with pytest.raises(Interrupted):
        run(method=method, out=tmp_path, interrupted=lambda: next(left, None) is None)
    given = {part: arguments()[part] for part in ("model", "train", "test")}
    again = resume(tmp_path, **given)  # type: ignore[arg-type]
    assert again.trace_digest == whole.trace_digest
    assert again.weights_digest == whole.weights_digest
    assert replay(tmp_path, weights=True, **given).identical  # type: ignore[arg-type]


def test_a_dry_run_draws_the_same_devices() -> None:
    fleet = {**FLEET, "churn": {"every": 0.06, "leave_probability": 0.4, "mbps": [1.0, 3.0]}}
    method = {"name": "fl", "participation": 0.5}
    real, dry = (run(method=method, fleet=fleet, dry=dry) for dry in (False, True))
    assert real.rounds == dry.rounds
    assert real.seconds == dry.seconds


def test_the_network_draws_the_devices_that_the_simulation_draws(tmp_path: Path) -> None:
    recipe = tiny_recipe("fl", stop={"rounds": 4})
    method = recipe.method.model_copy(update={"participation": 0.34})
    recipe = recipe.model_copy(update={"method": method})
    with Server(recipe, tmp_path / "run") as server:
        devices = [start_device(name, server.address, tmp_path) for name in NAMES]
        result = server.result()
        for device in devices:
            device.answer()
    assert simulate(recipe).weights_digest == result.weights_digest
    assert replay(tmp_path / "run", weights=True, allow_modules=["tests"]).identical
