"""A run goes on with more epochs: after its end, or after a stop before it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

import fedoptima
from fedoptima.core.errors import ConfigError
from fedoptima.core.events import Extended
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.methods.registry import COMPARED
from fedoptima.trace.reader import read_trace
from tests.support.network import tiny_recipe

COSINE = {"batch_size": 8, "schedule": {"kind": "cosine"}}
ALLOWED = ["tests"]


def extended(run: Path, **stop: float) -> fedoptima.Result:
    return fedoptima.resume(run, extend=stop, allow_modules=ALLOWED, workers=1)


QUICK = ("fedoptima", "fl", "oafl")


@pytest.mark.parametrize(
    "method",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMPARED],
)
def test_a_finished_run_goes_on_and_replays_exactly(method: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = fedoptima.simulate(tiny_recipe(method, stop={"epochs": 1.0}), out=run, workers=1)
    second = extended(run, epochs=3.0)
    assert second.reason == "3 epochs done"
    assert second.curve[: len(first.curve)] == first.curve
    assert second.curve[-1].epochs == pytest.approx(3.0, abs=0.6)
    assert second.weights_digest != first.weights_digest
    found = fedoptima.replay(run, weights=True, allow_modules=ALLOWED)
    assert found.identical, found
    assert fedoptima.resume(run).weights_digest == second.weights_digest  # it is over again


def test_it_can_be_extended_again_and_killed_in_between(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fedoptima.simulate(tiny_recipe(stop={"epochs": 1.0}), out=run, workers=1)
    with pytest.raises(Interrupted):
        fedoptima.resume(
            run, extend={"epochs": 2}, allow_modules=ALLOWED, workers=1, interrupted=lambda: True
        )
    assert not RunDirectory(run).over
    assert fedoptima.resume(run, allow_modules=ALLOWED, workers=1).reason == "2 epochs done"
    assert extended(run, epochs=3).reason == "3 epochs done"
    assert fedoptima.replay(run, weights=True, allow_modules=ALLOWED).identical
    rules = [r.event.stop for r in read_trace(run / "trace.jsonl.gz") if type(r.event) is Extended]
    assert [rule.epochs for rule in rules] == [2, 3]


def test_the_schedule_follows_the_new_budget(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = tiny_recipe(stop={"epochs": 2.0}, training=COSINE)
    fedoptima.simulate(recipe, out=run, workers=1)
    extended(run, epochs=6)
    shares = [
        effect.job.progress
        for record in read_trace(run / "trace.jsonl.gz")
        for effect in record.effects
        if hasattr(effect, "job") and hasattr(effect.job, "progress")
    ]
    assert max(shares) <= 1
    falls = sum(later < before for before, later in pairwise(shares))
    assert falls == 1, "the share of the budget that is spent falls when the budget grows"
    assert fedoptima.replay(run, allow_modules=ALLOWED).identical


@pytest.mark.parametrize(
    ("extension", "message"),
    [
        ({"training.batch_size": 4}, "only keys of stop can"),
        ({"epochs": 0.5}, "stop.epochs = 0.5 is less than before, 1; give more"),
        ({"epochs": 1.0}, "give more"),
        ({"hours": 4.0}, "would end at once (1 epoch done); extend that key of stop as well"),
        ({"epoch": 4}, "did you mean 'epochs'?"),
    ],
)
def test_what_cannot_be_extended_leaves_the_run_as_it_is(
    finished: Path, extension: dict[str, object], message: str
) -> None:
    before = (finished / "config.json").read_text()
    with pytest.raises(ConfigError) as raised:
        fedoptima.resume(finished, extend=extension, allow_modules=ALLOWED)
    assert message in str(raised.value)
    assert (finished / "config.json").read_text() == before
    assert json.loads((finished / "summary.json").read_text())["reason"] == "1 epoch done"


def test_a_metric_that_falls_is_trained_further_to_a_lower_target(tmp_path: Path) -> None:
    """What is more is not a larger number for every key of ``stop``."""
    stop = {"epochs": 1.0, "metric": "loss", "target": 0.001}
    run = tmp_path / "run"
    fedoptima.simulate(tiny_recipe("fl", stop=stop), out=run, workers=1)
    further = {"epochs": 2.0, "target": 0.0001}
    longer = fedoptima.resume(run, extend=further, allow_modules=ALLOWED, workers=1)
    assert longer.reason == "2 epochs done"
    reached = {"epochs": 3.0, "target": 1000.0}
    with pytest.raises(ConfigError, match=r"would end at once \(loss .* reached the target"):
        fedoptima.resume(run, extend=reached, allow_modules=ALLOWED, workers=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    fedoptima.simulate(tiny_recipe("fl", stop={"epochs": 1.0}), out=run, workers=1)
    return run


def test_a_dry_run_has_no_state_to_go_on_from(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fedoptima.simulate(tiny_recipe("fl", stop={"epochs": 1.0}), out=run, dry=True)
    with pytest.raises(ConfigError, match="start a new run with the same recipe and epochs"):
        extended(run, epochs=2)
