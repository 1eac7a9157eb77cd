"""Runs whose activations, gradients and updates are sent in fewer bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedoptima.methods.registry import METHODS, method_options
from fedoptima.trace.record import Record
from fedoptima.verification.replay import replay
from tests.experiments.runs import (
    CHARGED,
    CHURN,
    FLEET,
    data,
    network,
    run,
    set_up,
    without_metrics,
)

KEYS = ("codec", "gradient_codec", "update_codec")
GIVEN = {"model": network(), "train": data(), "test": data(48, seed=1)}


def coded(method: str, codec: str = "int8") -> dict[str, object]:
    """All that the method sends, coded."""
    keys = [key for key in KEYS if key in method_options(method)]
    return {"name": method, **dict.fromkeys(keys, codec)}


@pytest.mark.parametrize("method", METHODS)
def test_a_coded_run_is_replayed_bit_for_bit(method: str, tmp_path: Path) -> None:
    result = run(method=coded(method), epochs=1.0, fleet={**FLEET, "churn": CHURN}, out=tmp_path)
    found = replay(tmp_path, weights=True, **GIVEN)  # type: ignore[arg-type]
    assert found.identical, found
    assert result.accuracy is not None


@pytest.mark.parametrize("method", METHODS)
def test_a_dry_run_knows_the_true_bytes(method: str) -> None:
    traces: list[list[Record]] = []
    codec = "bfloat16" if method in ("fedasync", "oafl") else "int8"
    for dry in (False, True):
        records: list[Record] = []
        set_up(
            records, dry=dry, method=coded(method, codec), fleet=CHARGED, stop={"epochs": 1.0}
        ).simulation.run()
        traces.append([without_metrics(record) for record in records])
    assert traces[0] == traces[1]


@pytest.mark.parametrize("method", ["fedoptima", "pipar"])
def test_worker_processes_give_the_same_bits(method: str) -> None:
    one, two = (run(method=coded(method), epochs=1.0, workers=workers) for workers in (1, 2))
    assert one.weights_digest == two.weights_digest
    assert one.trace_digest == two.trace_digest


def test_int8_takes_about_a_quarter_of_the_bytes_and_learns_as_well() -> None:
    plain, small = (run(method=coded("splitfed", codec)) for codec in ("float32", "int8"))
    for way in ("up", "down"):
        before, after = (getattr(each.summary.traffic, way) for each in (plain, small))
        assert after.activations < 0.4 * before.activations or way == "down"
        assert after.gradients < 0.3 * before.gradients or way == "up"
    assert small.accuracy == pytest.approx(plain.accuracy, abs=0.1)
    assert small.summary.memory.peak_activations < 0.4 * plain.summary.memory.peak_activations
