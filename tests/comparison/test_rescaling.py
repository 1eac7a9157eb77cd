"""A method with a barrier learns the same on every fleet: only its times have to be found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedoptima.comparison.cases import Case
from fedoptima.comparison.rescaling import rescaled
from fedoptima.comparison.rows import Run, read_run
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.simulation import simulate
from tests.comparison.recipes import tiny

ELSEWHERE = ("fleet.scale=0.3", "fleet.devices.1.mbps=1", "fleet.server.gflops=1")
SAME = (
    "split.at=1",
    'training={batch_size=50, iterations=4, evaluate_every=0.4, schedule={kind="cosine"}}',
)


def run(folder: Path, method: str, *changes: str, dry: bool = False) -> Run:
    parts = ["method.micro_batches=2"] if method == "pipar" else []
    recipe = tiny(folder, *SAME, f"method.name={method}", *parts, *changes)
    return read_run(Case(method), 1, json.loads(simulate(recipe, dry=dry).to_json()))


@pytest.mark.parametrize("method", ["fl", "splitfed", "pipar"])
def test_rescaled_equals_trained_there(tmp_path: Path, method: str) -> None:
    here, there = run(tmp_path, method), run(tmp_path, method, *ELSEWHERE)
    assert here.figures is not None
    assert there.figures is not None
    assert there.figures.seconds > 1.5 * here.figures.seconds  # another fleet indeed
    found = rescaled(here, run(tmp_path, method, *ELSEWHERE, dry=True))
    assert len(found.curve) > 1
    assert found.figures == there.figures
    assert found.curve == there.curve
    assert found.weights_digest == there.weights_digest


def test_what_depends_on_the_fleet_is_not_rescaled(tmp_path: Path) -> None:
    fedasync, fl = (run(tmp_path, method, dry=True) for method in ("fedasync", "fl"))
    with pytest.raises(ConfigError, match="what fedasync learns depends on the fleet"):
        rescaled(fedasync, fedasync)
    cse_fsl = replace(fl, method="cse_fsl")  # has a barrier, but its devices do not wait
    with pytest.raises(ConfigError, match="what cse_fsl learns depends on the fleet"):
        rescaled(cse_fsl, cse_fsl)
    with pytest.raises(ConfigError, match="cannot have the times of fedasync"):
        rescaled(fl, fedasync)
    with pytest.raises(ConfigError, match="cannot have the times of fl, seed 2"):
        rescaled(fl, replace(fl, seed=2))
    with pytest.raises(ConfigError, match="not evaluated after the same epochs"):
        rescaled(fl, replace(fl, curve=fl.curve[:-1]))
    with pytest.raises(ConfigError, match="a run of it has failed"):
        rescaled(fl, replace(fl, figures=None))
