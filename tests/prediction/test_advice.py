"""Advice comes from dry reruns with one change each, within a time, or says why there is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch

from fedoptima.analysis.influence import influence_warnings
from fedoptima.analysis.run_view import RunView, view_of
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.flow import CappedFlow
from fedoptima.core.types import NodeId
from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset
from fedoptima.experiments.setup import prepare
from fedoptima.prediction.advice import Advice, Trial, advise, changes, measured_experiment
from fedoptima.trace.description import Mode
from fedoptima.trace.record import Record
from tests.experiments.runs import CHURN, FLEET
from tests.support.descriptions import described

SLOW, FAST = NodeId("slow"), NodeId("fast")
TABLE: dict[str, Any] = {
    "model": {"name": "vgg5"},
    "data": {"name": "tests.prediction.test_advice:pictures", "partition": {"kind": "iid"}},
    "fleet": FLEET,
    "training": {"batch_size": 8},
    "stop": {"epochs": 10.0},
    "threads": 1,
}


def pictures() -> Dataset:
    """96 of 1 x 8 x 8, for training without learning anything."""
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(96, 1, 8, 8, generator=generator), torch.arange(96) % 3
    return as_dataset((inputs, labels), (inputs[:48], labels[:48]))


def recipe(**parts: object) -> Recipe:
    return validate(Recipe, {**TABLE, **parts}, "test")


def dry_view(recipe: Recipe) -> RunView:
    from fedoptima.experiments.setup import assemble

    records: list[Record] = []
    assemble(prepare(recipe), [records.append], dry=True).simulation.run()
    return view_of("run", described(recipe=recipe.model_dump()), records)


def over_the_network(view: RunView) -> RunView:
    return replace(view, description=replace(view.description, mode=Mode.NETWORK))


@pytest.fixture(scope="module")
def short() -> Recipe:
    return recipe(stop={"epochs": 1.0})


@pytest.fixture(scope="module")
def view(short: Recipe) -> RunView:
    return dry_view(short)


def frozen() -> float:
    return 0.0


def ticking() -> Callable[[], float]:
    """A clock that goes on by a second each time it is looked at."""
    ticks = count()
    return lambda: float(next(ticks))


# ---- the changes ---------------------------------------------------------------------------------


def test_what_the_trials_would_warn_of_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    late = recipe(
        method={"name": "fedasync", "max_delay": 0}, training={"batch_size": 8, "iterations": 1}
    )
    view = dry_view(late)
    assert list(influence_warnings(view.summary.balance, "fedasync"))
    assert advise(late, view).trials
    assert caplog.messages == []


def test_each_change_is_one_change(short: Recipe) -> None:
    experiment = prepare(short)
    flow = experiment.method.flow()
    assert isinstance(flow, CappedFlow)
    found = dict(changes(experiment, split=2))
    assert list(found) == [
        "twice the speed of the slowest (slow)",
        "twice the uplink of every device",
        "twice the server's speed",
        f"twice the activation cap (method.activation_cap = {2 * flow.cap})",
        "one block less on the devices (split.at = 1)",
        "one block more on the devices (split.at = 3)",
    ]
    slow, uplink, server, cap, less, _ = found.values()
    before = experiment.fleet.devices
    assert slow.fleet.devices[SLOW].flops_per_second == 2 * before[SLOW].flops_per_second
    assert slow.fleet.devices[FAST] == before[FAST]
    for name, spec in uplink.fleet.devices.items():
        assert spec == replace(before[name], up=2 * before[name].up)
    assert server.fleet.devices == before
    assert server.fleet.server.flops_per_second == 2 * experiment.fleet.server.flops_per_second
    changed = cap.method.flow()
    assert isinstance(changed, CappedFlow)
    assert changed.cap == 2 * flow.cap
    assert less.workload.planning == replace(experiment.workload.planning, split=1)


def test_a_method_is_offered_only_what_it_has() -> None:
    experiment = prepare(recipe(method={"name": "fl"}))
    names = " ".join(name for name, _ in changes(experiment, split=4))
    assert "cap" not in names
    assert "block" not in names


def test_links_that_change_by_themselves_are_left_alone() -> None:
    experiment = prepare(recipe(fleet={**FLEET, "churn": CHURN}))
    assert "uplink" not in " ".join(name for name, _ in changes(experiment, split=1))


def test_measured_times_are_halved_too() -> None:
    server = {"gflops": 0.05, "seconds": {"merge": 0.4}}
    found = dict(changes(prepare(recipe(fleet={**FLEET, "server": server})), split=1))
    assert found["twice the server's speed"].fleet.server.seconds == {"merge": 0.2}


# ---- the trials ----------------------------------------------------------------------------------


def test_the_change_that_helps_most_is_named(short: Recipe, view: RunView) -> None:
    advice = advise(recipe(), view, clock=frozen)
    assert advice.reason == ""
    assert advice.epochs == 2
    assert len(advice.trials) >= 4
    assert advice.skipped == ()
    best = advice.best
    assert best is not None
    assert advice.gain(best) == max(map(advice.gain, advice.trials)) > 0.02
    finding, origin = advice.paragraphs()
    assert f"{best.change} would help most" in finding
    assert "instead of" in finding
    assert "dry simulations of the recipe, 2 epochs each" in origin
    assert advice.plain()["best"] == best.change


def test_a_barrier_is_helped_by_faster_slow_devices() -> None:
    fl = recipe(method={"name": "fl"}, stop={"epochs": 1.0})
    advice = advise(fl, dry_view(fl), clock=frozen)
    assert advice.best is not None
    assert advice.best.change == "twice the speed of the slowest (slow)"


def test_what_there_was_no_time_for_is_said(view: RunView) -> None:
    whole = advise(recipe(), view, clock=frozen)
    ticks = ticking()
    needed = 0.0

    def counting() -> float:
        nonlocal needed
        needed = ticks()
        return needed

    advise(recipe(), view, budget=1e9, clock=counting)
    some = advise(recipe(), view, budget=needed / 2, clock=ticking())
    assert some.baseline == whole.baseline
    assert some.skipped
    assert len(some.trials) + len(some.skipped) >= len(whole.trials)
    assert "There was no time to try" in some.paragraphs()[1]


def test_a_recipe_that_takes_too_long_gets_no_advice(view: RunView) -> None:
    advice = advise(recipe(), view, budget=3, clock=ticking())
    assert advice.paragraphs() == ["No advice: a dry simulation of the recipe takes more than 3 s."]


def test_what_was_given_in_python_cannot_be_rerun(view: RunView) -> None:
    advice = advise(recipe(model={"name": "custom"}), view)
    assert "given in Python" in advice.reason


def test_data_that_cannot_be_read_is_the_reason(view: RunView) -> None:
    advice = advise(recipe(data={"name": "nowhere:data"}), view)
    assert advice.reason.startswith("the recipe cannot be rerun here")
    assert advice.baseline is None


# ---- in words ------------------------------------------------------------------------------------


def trial(change: str, devices: float, server: float = 0.0) -> Trial:
    return Trial(change, devices, server, 0.5, 0.1)


def test_a_small_gain_is_none() -> None:
    base = trial("", 100)
    enough = Advice(baseline=base, trials=(trial("x", 102),))
    too_little = Advice(baseline=base, trials=(trial("x", 101.9),))
    assert enough.best is not None
    assert too_little.best is None
    assert too_little.paragraphs()[0].startswith("None of 1 single changes")
    assert "x +2 %" in too_little.paragraphs()[0]


def test_both_sides_count_where_the_server_trains() -> None:
    advice = Advice(baseline=trial("", 100, 100), trials=())
    assert advice.gain(trial("x", 400, 100)) == pytest.approx(1.0)
    assert advice.gain(trial("x", 100, 400)) == pytest.approx(1.0)
    assert Advice(baseline=trial("", 100), trials=()).gain(trial("x", 150)) == pytest.approx(0.5)


# ---- a real run ----------------------------------------------------------------------------------


def test_a_change_that_does_harm_comes_with_the_reason() -> None:
    worse = replace(trial("one block less", 4.0, 2.5), note="a batch costs a device more")
    advice = Advice("", trial("", 4.0, 5.0), (trial("more speed", 4.0, 5.0), worse))
    text = advice.paragraphs()[0]
    assert "more speed +0 %;" in text
    assert (
        "one block less -29 % (the server would train on 2.5 samples/s instead of 5, "
        "a batch costs a device more)"
    ) in text


def test_what_another_split_costs_a_device_is_known_from_the_plan(
    short: Recipe, view: RunView
) -> None:
    assert view.plan is not None
    found = advise(short, view, clock=frozen)
    notes = {trial.change: trial.note for trial in found.trials if "split.at" in trial.change}
    assert notes
    for note in notes.values():
        assert re.search(r"costs a device .* GFLOP instead of .* MiB to send instead of", note)
    assert not any(trial.note for trial in found.trials if "split.at" not in trial.change)


def test_a_real_runs_fleet_is_what_the_devices_reported(short: Recipe, view: RunView) -> None:
    without = short.model_copy(update={"fleet": None})
    experiment = measured_experiment(without, view, lambda *_: None)
    simulated = prepare(short).fleet
    assert list(experiment.fleet.devices) == sorted(simulated.devices)
    for name, spec in experiment.fleet.devices.items():
        assert spec.flops_per_second == pytest.approx(simulated.devices[name].flops_per_second)
        assert spec.up == pytest.approx(simulated.devices[name].up)
    # What the server was seen to do is its speed.
    seen = experiment.fleet.server.flops_per_second
    assert seen == pytest.approx(simulated.server.flops_per_second, rel=0.02)
    assert view.plan is not None
    assert experiment.workload.planning.split == view.plan.split


def test_advice_for_a_real_run_says_where_the_fleet_is_from(short: Recipe, view: RunView) -> None:
    without = short.model_copy(update={"fleet": None})
    advice = advise(without, over_the_network(view), clock=frozen)
    assert advice.baseline is not None
    assert "with devices as fast as they reported" in advice.paragraphs()[1]
    assert view.summary.throughput.device == pytest.approx(
        advice.baseline.device_throughput, rel=0.1
    )


def test_a_run_that_no_device_has_joined_has_no_fleet(short: Recipe, view: RunView) -> None:
    with pytest.raises(ConfigError, match="no device has joined"):
        measured_experiment(short, replace(view, joins={}), lambda *_: None)
