"""The time of a useful sample: by hand where one number decides, and against longer runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedoptima.comparison.dry_pace import Conditions, conditions_of, pace_of, prepared
from fedoptima.core.stopping import StopRule
from fedoptima.experiments.simulation import simulate
from tests.comparison.recipes import tiny

ONCE = StopRule(rounds=1)


def test_a_barriers_one_round_is_as_good_as_ten(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, "stop.epochs=10")
    for method in ("fl", "splitfed", "pipar"):
        long = simulate(recipe, method=method, dry=True, progress=False)
        short = pace_of(prepared(recipe, method, {}, None, ONCE))
        assert short == pytest.approx(long.seconds / long.useful_samples, rel=0.01)


def test_without_a_barrier_a_few_epochs_are_as_good_as_forty(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, "stop.epochs=40")
    for method in ("fedoptima", "fedasync", "oafl"):
        long = simulate(recipe, method=method, dry=True, progress=False)
        short = pace_of(prepared(recipe, method, {}, None, ONCE))
        assert short == pytest.approx(long.seconds / long.useful_samples, rel=0.03)


def test_a_server_that_is_the_bottleneck_sets_the_pace(tmp_path: Path) -> None:
    recipe = tiny(tmp_path)
    slow = Conditions(devices=1.0, mbps=1000.0, latency_ms=0.0, server_gflops=0.01)
    plan = prepared(recipe, "fedoptima", {}, slow, ONCE)
    assert plan.fleet.server.flops_per_second == 0.01e9
    halved = Conditions(1.0, 1000.0, 0.0, 0.005)
    first, second = (
        pace_of(prepared(recipe, "fedoptima", {}, each, ONCE)) for each in (slow, halved)
    )
    assert second == pytest.approx(2 * first, rel=0.02)


def test_conditions_change_speeds_links_and_latency(tmp_path: Path) -> None:
    recipe = tiny(tmp_path)
    assert conditions_of(recipe) == Conditions(1.0, 5.0, 0.0, 3.0)
    cell = Conditions(0.5, 80.0, 20.0, 6.0)
    fleet = prepared(recipe, "fl", {}, cell, ONCE).fleet
    assert [spec.flops_per_second for spec in fleet.devices.values()] == [0.05e9, 0.15e9, 0.15e9]
    assert {(spec.up, spec.down, spec.latency) for spec in fleet.devices.values()} == {
        (10e6, 10e6, 0.02)
    }
    assert fleet.server.flops_per_second == 6e9
