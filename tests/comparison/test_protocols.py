"""How long methods are trained: equal epochs, equal virtual time, or until convergence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedoptima.comparison.protocols import dry_time, equal_time, time_taken, until_convergence
from fedoptima.core.effects import Run, Send
from fedoptima.core.errors import ConfigError
from fedoptima.core.events import JobDone
from fedoptima.core.jobs import PlanRun, ServerStep
from fedoptima.core.messages import GlobalModel
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER
from fedoptima.experiments.simulation import simulate
from fedoptima.trace.reader import read_trace
from fedoptima.verification.replay import replay
from tests.comparison.recipes import tiny

COSINE = 'training.schedule={kind="cosine"}'


def test_equal_time_gives_every_method_the_time_that_fedoptima_takes(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, COSINE, "stop.epochs=8", "stop.patience=30", "method.name=fl")
    seconds = dry_time(recipe)
    assert seconds == simulate(recipe, method="fedoptima", dry=True).seconds
    same = equal_time(recipe, seconds)
    results = {name: simulate(same, method=name, dry=True) for name in ("fedoptima", "fl", "pipar")}
    for result in results.values():
        # A job that runs when the time is over is done first.
        assert seconds <= result.seconds * (1 + 1e-9) < 1.1 * seconds
    assert results["fedoptima"].epochs > results["fl"].epochs


def test_with_a_time_budget_the_schedule_follows_the_clock_exactly(tmp_path: Path) -> None:
    recipe = equal_time(tiny(tmp_path, COSINE), 2.0)
    simulate(recipe, dry=True, out=tmp_path / "run")
    began, budget, shares = 0.0, recipe.stop.seconds or 0.0, []
    for record in read_trace(tmp_path / "run" / "trace.jsonl.gz"):
        if record.node != SERVER:
            continue
        if isinstance(record.event, JobDone) and isinstance(record.event.job, PlanRun):
            began = record.at
        for effect in record.effects:
            match effect:
                case (
                    Run(job=ServerStep(progress=share)) | Send(message=GlobalModel(progress=share))
                ):
                    shares.append(share)
                    assert share == min(1.0, (record.at - began) / budget)
    assert len(shares) > 20
    assert 0.8 < max(shares) <= 1.0
    assert replay(tmp_path / "run").identical


def test_convergence_is_a_constant_rate_and_patience_on_data_held_out(tmp_path: Path) -> None:
    recipe = until_convergence(
        tiny(tmp_path, 'training.schedule={kind="cosine", warmup=0.1}', "stop.hours=9")
    )
    assert recipe.stop == StopRule(patience=30, hours=9.0)  # hours bound it, epochs do not
    assert recipe.data.validation == 0.1
    assert not recipe.training.schedules_move
    kept = until_convergence(tiny(tmp_path, "stop.patience=7", "data.validation=0.2"))
    assert kept.stop == StopRule(patience=7)
    assert kept.data.validation == 0.2


def test_steps_of_the_rate_follow_the_most_epochs_of_a_run_that_may_converge_earlier(
    tmp_path: Path,
) -> None:
    steps = 'training.schedule={kind="step", steps=[0.6]}'
    recipe = until_convergence(tiny(tmp_path, steps, "stop.epochs=200"), patience=20)
    assert recipe.stop == StopRule(patience=20, epochs=200)
    assert recipe.training.schedule.steps == (0.6,)
    with pytest.raises(ConfigError, match=r"give stop.epochs, the most that a run may take"):
        until_convergence(
            tiny(tmp_path, steps).model_copy(update={"stop": StopRule(hours=1, patience=3)})
        )


def test_the_time_of_a_finished_comparison_is_the_mean_over_its_seeds(tmp_path: Path) -> None:
    runs: list[dict[str, object]] = [
        {"method": "fl", "figures": {"seconds": 9.0}},
        {"method": "fedoptima", "figures": {"seconds": 2.0}},
        {"method": "fedoptima", "figures": None},  # it failed
        {"method": "fedoptima", "figures": {"seconds": 3.0}},
    ]
    (tmp_path / "comparison.json").write_text(json.dumps({"about": {}, "runs": runs}))
    assert time_taken(tmp_path) == 2.5
    with pytest.raises(ConfigError, match="no finished run of splitfed"):
        time_taken(tmp_path, "splitfed")


def test_a_finished_run_has_its_time_too(tmp_path: Path) -> None:
    result = simulate(tiny(tmp_path), dry=True, out=tmp_path / "run")
    assert time_taken(tmp_path / "run") == result.seconds
    with pytest.raises(ConfigError, match="no finished run and no comparison"):
        time_taken(tmp_path)
