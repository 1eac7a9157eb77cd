"""One device with little data: the small version of what the tool measures, and its verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.unequal_shares import SPLITS, Case, load, run, save, verdicts

CASE = Case("digits", "fedasync", None, tiny=4, seed=1, epochs=3)


@pytest.mark.parametrize("method", SPLITS)
def test_a_tiny_device_does_not_harm_the_model(method: str) -> None:
    case = replace(CASE, method=method, split=SPLITS[method][0])
    alone, joined = run(replace(case, tiny=0), "cpu"), run(case, "cpu")
    assert joined["accuracy"] > alone["accuracy"] - 0.04
    assert 0 < joined["influence"]["tiny"] < 0.05
    assert min(joined["updates"].values()) > 0
    assert joined["refused"] == 0


def test_a_case_fails_by_its_mean_or_by_its_worst_seed(tmp_path: Path) -> None:
    def verdict(*lost: float) -> bool:
        runs = {}
        for seed, points in enumerate(lost, start=1):
            runs[replace(CASE, seed=seed, tiny=0)] = {"accuracy": 0.8}
            runs[replace(CASE, seed=seed)] = {"accuracy": 0.8 - points / 100}
        save(tmp_path / "runs.json", runs, {"command": "this"})
        assert load(tmp_path / "runs.json") == runs
        (found,) = verdicts(runs)
        return found.passed

    assert verdict(1.9, 1.9, 1.9)
    assert not verdict(2.2, 2.2, 2.2)
    assert verdict(3.9, 0.0, 0.0)
    assert not verdict(4.1, 0.0, 0.0)
