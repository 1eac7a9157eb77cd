"""What the benchmarks compare: the sides do the same work. How fast is for `make bench` to say."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.fedoptima_workers import CHAIN, SIDES
from benchmarks.fl_against_loop import figures, memory_figures, sides
from benchmarks.peers.__main__ import PEERS, find
from benchmarks.sides import Comparison, check_same, tree_mb
from benchmarks.step_costs import Step, fit, worst
from benchmarks.workloads import Workload, recipe, store_images
from fedoptima.preprocess.job_costs import Rates

TINY = Workload(clients=3, samples=4, batch=2, rounds=2)


@pytest.fixture(autouse=True)
def _no_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDOPTIMA_DATA", raising=False)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    file = tmp_path / "images.pt"
    assert store_images(TINY, file) == "noise"
    return file


def test_the_loop_in_two_processes_trains_the_model_that_the_simulation_trains(
    images: Path,
) -> None:
    comparison = Comparison(TINY, sides(), images)
    comparison.run(1)  # which compares the weights
    found = figures(comparison, 1.05)
    assert found["ratio"] == found["ratios"][0] > 0  # type: ignore[index]
    call = found["whole call of simulate, seconds"]
    assert call[0] >= found["simulated seconds"][0]  # type: ignore[index]
    processor = found["processor time"]
    assert isinstance(processor, dict)
    assert processor["simulated seconds"][0] > 0
    assert processor["loop seconds"][0] > 0


def test_both_sides_may_forget_momentum_and_are_weighed_with_all_their_processes(
    images: Path,
) -> None:
    comparison = Comparison(replace(TINY, keeps_momentum=False), sides(), images)
    comparison.weigh()  # which compares the weights too
    memory = memory_figures(comparison)["memory"]
    assert isinstance(memory, dict)
    assert memory["loop peak MB"] > 50
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert 0 < tree_mb(child.pid) < tree_mb(os.getpid())
    finally:
        child.communicate(b"\n")


def test_sides_that_do_other_work_are_caught() -> None:
    some, close, other = torch.tensor([1.0]), torch.tensor([1.0 + 1e-5]), torch.tensor([1.1])
    check_same({"one": {"a": some}, "other": {"a": close, "not in the first": other}})
    with pytest.raises(SystemExit, match=r"did other work: a differs by 0\.1"):
        check_same({"one": {"a": some}, "other": {"a": other}})


def test_the_servers_chain_is_counted_in_steps(images: Path) -> None:
    comparison = Comparison(replace(TINY, method="fedoptima"), SIDES[2:], images)
    comparison.run(1)
    assert comparison.figures[CHAIN].more == [{"steps": 3 * 2 * 2}]


def test_a_peer_that_is_not_there_is_left_out_with_the_reason(tmp_path: Path) -> None:
    found, versions, missing = find(tmp_path / "python")
    assert (found, versions) == ([], {})
    assert missing.keys() == PEERS.keys()
    assert "there is no" in missing["Flower"]
    _, _, missing = find(Path(sys.executable))
    assert "has no" in missing["pfl-research"]


def test_a_workload_leaves_out_keys_that_a_recipe_does_not_have(images: Path) -> None:
    assert recipe(TINY, images, seed=7, unheard_of=2).seed == 7


def test_the_rates_of_a_machine_are_found_in_its_steps_and_predict_others() -> None:
    known = Rates(5e9, memory=2e9, overhead=0.25)

    def step(flops: float, moved: float, jobs: int, *, fitted: bool) -> Step:
        seconds = flops / 5e9 + moved / 2e9 + jobs * 0.25
        return Step("a model", 1, "step", seconds, flops, moved, jobs, fitted)

    steps = [step(1e9, 4e9, 1, fitted=True), step(9e9, 1e9, 2, fitted=True)]
    steps += [step(3e9, 3e9, 1, fitted=True), step(20e9, 8e9, 2, fitted=False)]
    found = fit([each for each in steps if each.fitted])
    assert (found.flops_per_second, found.memory, found.overhead) == pytest.approx(
        (known.flops_per_second, known.memory, known.overhead)
    )
    assert worst(steps, found) == pytest.approx(0.0, abs=1e-9)


def test_a_rate_that_would_be_negative_is_left_out() -> None:
    steps = [Step("a model", 1, "step", f / 1e9, f, 0.0, 1, True) for f in (1e9, 2e9, 5e9)]
    assert fit(steps).memory is None
    assert fit(steps).overhead == pytest.approx(0.0, abs=1e-9)
