from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.core.stopping import Stopper, StopRule


def test_a_run_that_nothing_stops_is_the_users_error() -> None:
    with pytest.raises(
        ConfigError, match="rounds, epochs, hours, target_accuracy, target or patience"
    ):
        StopRule()


@pytest.mark.parametrize("name", ["rounds", "epochs", "hours", "target_accuracy", "patience"])
def test_a_budget_must_be_above_zero(name: str) -> None:
    with pytest.raises(ConfigError, match=f"stop.{name} = 0"):
        StopRule(**{name: 0})


def test_the_first_budget_that_is_spent_stops_the_run() -> None:
    stopper = Stopper(StopRule(rounds=10, epochs=3.0))
    assert stopper.spent(rounds=9, epochs=2.9) is None
    assert stopper.spent(rounds=10, epochs=0.0) == "10 rounds done"
    assert stopper.spent(rounds=0, epochs=3.0) == "3 epochs done"


def test_epochs_that_were_summed_up_from_shares_are_enough() -> None:
    epochs = reduce(add, [0.1] * 10)  # not sum(), which makes up for rounding from Python 3.12 on
    assert epochs < 1
    assert Stopper(StopRule(epochs=1.0)).spent(rounds=0, epochs=epochs) is not None


@pytest.mark.parametrize("metric", ["accuracy", "devices_worst_accuracy"])
def test_a_target_in_percent_is_no_accuracy(metric: str) -> None:
    with pytest.raises(ConfigError, match=r"stop.target = 90: an accuracy is at most 1 \(0.8 is"):
        StopRule(metric=metric, target=90.0, epochs=1.0)
    assert StopRule(metric="perplexity", target=90.0).target == 90.0


def test_the_target_accuracy_stops_the_run_when_it_is_reached() -> None:
    stopper = Stopper(StopRule(target_accuracy=0.8))
    assert stopper.evaluated({"accuracy": 0.79}, epochs=1.0) is None
    reason = stopper.evaluated({"accuracy": 0.8}, epochs=2.0)
    assert reason is not None
    assert "0.8000 reached the target 0.8" in reason


def test_patience_counts_epochs_since_the_best_accuracy() -> None:
    stopper = Stopper(StopRule(patience=3.0))
    for epochs, accuracy in ((1.0, 0.5), (2.0, 0.6), (3.0, 0.6), (4.9, 0.59)):
        assert stopper.evaluated({"accuracy": accuracy}, epochs=epochs) is None
    reason = stopper.evaluated({"accuracy": 0.6}, epochs=5.0)  # equal is not better
    assert reason is not None
    assert "not improved on 0.6000 for 3 epochs" in reason


def test_a_better_accuracy_starts_the_patience_anew() -> None:
    stopper = Stopper(StopRule(patience=2.0))
    for epochs, accuracy in ((1.0, 0.5), (2.9, 0.51), (4.8, 0.52)):
        assert stopper.evaluated({"accuracy": accuracy}, epochs=epochs) is None


def test_an_evaluation_that_measured_nothing_stops_nothing() -> None:
    stopper = Stopper(StopRule(patience=0.1, target_accuracy=0.1))
    assert stopper.evaluated({}, epochs=100.0) is None


def test_a_rule_about_accuracy_alone_is_told_apart() -> None:
    assert StopRule(patience=1.0, target_accuracy=0.5).only_accuracy
    assert not StopRule(patience=1.0, hours=5.0 / 3600).only_accuracy


def test_progress_is_the_largest_share_of_any_budget_and_at_most_one() -> None:
    rule = StopRule(rounds=10, epochs=4.0, hours=100.0 / 3600)
    assert rule.progress(rounds=1, epochs=2.0, seconds=20.0) == 0.5
    assert rule.progress(rounds=1, epochs=0.0, seconds=70.0) == 0.7
    assert rule.progress(rounds=30, epochs=0.0, seconds=0.0) == 1.0
    assert StopRule(patience=1.0).progress(rounds=9, epochs=9.0, seconds=9.0) == 0.0


def test_a_target_of_any_metric_stops_the_run() -> None:
    stopper = Stopper(StopRule(metric="f1", target=0.7))
    assert stopper.evaluated({"accuracy": 0.9, "f1": 0.6}, epochs=1.0) is None
    assert stopper.evaluated({"f1": 0.7}, epochs=2.0) == "f1 0.7000 reached the target 0.7"


@pytest.mark.parametrize(
    "rule",
    [StopRule(metric="mae", patience=2.0), StopRule(metric="x", direction="min", patience=2)],
)
def test_less_of_an_error_is_better(rule: StopRule) -> None:
    stopper, name = Stopper(rule), rule.metric or ""
    for epochs, value in ((1.0, 0.9), (2.0, 0.5), (3.0, 0.6)):
        assert stopper.evaluated({name: value}, epochs=epochs) is None
    reason = stopper.evaluated({name: 0.5}, epochs=4.0)
    assert reason == f"converged: {name} has not improved on 0.5000 for 2 epochs"


def test_without_an_accuracy_patience_goes_by_the_loss() -> None:
    stopper = Stopper(StopRule(patience=2.0))
    assert stopper.evaluated({"loss": 2.0}, epochs=1.0) is None
    assert stopper.evaluated({"loss": 1.0}, epochs=3.0) is None
    assert stopper.evaluated({"loss": 1.5}, epochs=5.0) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "f1"}, "nothing stops this run"),
        ({"metric": "f1", "target": float("nan")}, "must be finite"),
        ({"target": 0.7, "target_accuracy": 0.7}, "either target_accuracy or target"),
        ({"target": 0.7, "direction": "up"}, "must be 'max' or 'min'"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StopRule(**options)
