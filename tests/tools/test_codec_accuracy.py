"""What coding costs in accuracy: the arithmetic of the comparison, and that it is a fair one."""

from __future__ import annotations

import pytest

import fedoptima
from tools.codec_accuracy import differences, interval, unlimited
from tools.golden import RECIPE


def test_seeds_are_paired() -> None:
    runs = [
        {"seed": seed, "codec": codec, "accuracy": accuracy}
        for seed, codec, accuracy in [
            *((1, "float32", 0.80), (1, "int8", 0.79), (2, "float32", 0.70), (2, "int8", 0.72)),
            (3, "float32", 0.90),
        ]
    ]
    assert differences(runs, "int8", "accuracy") == pytest.approx([-1.0, 2.0])


def test_the_interval_is_students() -> None:
    assert interval([1.0]) == {"mean": 1.0}
    found = interval([-0.2, 0.1, 0.4, -0.1, 0.3])
    assert found["mean"] == pytest.approx(0.1)
    assert found["high"] == pytest.approx(0.1 + 2.776 * 0.25495 / 5**0.5, abs=1e-4)
    assert found["low"] == pytest.approx(0.2 - found["high"])


def test_every_batch_gets_through_and_the_cut_stays() -> None:
    """So the server trains on as many samples whatever they are coded in."""
    table = unlimited(fedoptima.load_recipe(RECIPE).model_dump(exclude_unset=True))
    assert len(table["fleet"]["devices"]) == 8
    runs = [
        fedoptima.simulate(
            RECIPE,
            method={"name": "fedoptima", "codec": codec},
            fleet=table["fleet"],
            split=table["split"],
            epochs=4,
            dry=True,
        )
        for codec in ("float32", "int8")
    ]
    trained = [run.curve[-1] for run in runs]
    assert trained[0].server_samples == trained[1].server_samples
    assert trained[0].server_samples == pytest.approx(trained[0].device_samples, rel=0.01)
    assert runs[0].split == runs[1].split
