"""A whole run in another number format."""

from __future__ import annotations

import pytest
import torch

import fedoptima
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.result import Result
from tests.experiments.runs import FLEET, data, network


def run(method: str = "fedoptima", *, dry: bool = False, **training: object) -> Result:
    return fedoptima.simulate(
        model=network(),
        train=data(),
        test=data(48, seed=1),
        fleet=FLEET,
        method=method,
        epochs=3,
        training={"batch_size": 8, **training},
        dry=dry,
    )


def same(first: Result, second: Result) -> bool:
    return all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_float32_is_the_default_and_changes_no_bit() -> None:
    assert same(run(), run(precision="float32"))


@pytest.mark.parametrize("method", ["fedoptima", "fl", "splitfed"])
def test_a_run_in_bfloat16_learns_repeats_and_takes_the_same_virtual_time(method: str) -> None:
    usual, first, second = run(method), *(run(method, precision="bf16") for _ in range(2))
    assert same(first, second)
    assert not same(first, usual)
    assert first.trace_digest == second.trace_digest
    assert first.seconds == usual.seconds
    assert first.accuracy == pytest.approx(usual.accuracy, abs=0.2)
    assert all(tensor.dtype != torch.bfloat16 for tensor in first.weights.values())


def test_a_format_that_the_machine_lacks_is_an_error_but_not_in_a_dry_run() -> None:
    with pytest.raises(ConfigError, match=r"{'precision': 'tf32'}: only NVIDIA GPUs"):
        run(precision="tf32")
    assert run(precision="tf32", dry=True).seconds > 0


def test_an_unknown_format_is_an_error_that_names_the_key() -> None:
    with pytest.raises(ConfigError, match=r"training={'precision': 'float16'}"):
        run(precision="float16")
