"""A run goes on with the model and the data that it began with, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedoptima
from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Split
from fedoptima.experiments.material import _samples, check_same
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.trace.description import read_config
from tests.experiments.runs import data, network, run
from tests.experiments.test_interrupted import after

INPUTS, LABELS = data()
TEST = data(48, seed=1)


def other_network() -> nn.Module:
    model = network()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.ReLU):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Tanh())
    return model


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    with pytest.raises(Interrupted):
        run(out=tmp_path / "run", interrupted=after(40))
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": (INPUTS[:-9], LABELS[:-9])}, "training data .* samples then, .* now"),
        ({"train": (INPUTS, (LABELS + 1) % 2)}, "training data .*other values in labels"),
        ({"train": (INPUTS.flip(0), LABELS)}, "training data .*input 1.*in another order"),
        ({"train": (INPUTS * 1.01, LABELS)}, "training data .*other values in input 1"),
        (
            {"test": (TEST[0][:-1], TEST[1][:-1])},
            "^test=...: the test data .*48 samples then, 47 now",
        ),
        ({"model": other_network()}, "the model has other layers"),
    ],
)
def test_what_it_did_not_begin_with_is_refused_and_nothing_is_lost(
    begun: Path, changes: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"model": network(), "train": (INPUTS, LABELS), "test": TEST}
    with pytest.raises(ConfigError, match=f"{message}.*; give the same again, or start a new run"):
        fedoptima.resume(begun, **{**given, **changes})
    assert fedoptima.resume(begun, **given).weights_digest == run().weights_digest


def test_a_finished_run_is_not_extended_with_other_data(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": network(), "train": (INPUTS, LABELS), "test": TEST}
    run(out=tmp_path / "run")
    before = (tmp_path / "run" / "config.json").read_text()
    with pytest.raises(ConfigError, match="training data"):
        fedoptima.resume(
            tmp_path / "run",
            **{**given, "train": (INPUTS[:-9], LABELS[:-9])},
            extend={"epochs": 9},
        )
    assert (tmp_path / "run" / "config.json").read_text() == before


def test_last_bits_and_the_order_of_test_data_do_not_matter(begun: Path) -> None:
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    fedoptima.resume(
        begun,
        model=network(),
        train=(INPUTS * (1 + 1e-7), LABELS),
        test=(TEST[0][order], TEST[1][order]),
    )


def test_a_run_of_an_earlier_version_goes_on_with_what_it_is_given(begun: Path) -> None:
    known = read_config(begun / "config.json").material
    check_same({}, known, "custom")
    assert known["train"]["means"][0]["size"] > 0.0


def test_a_dry_run_has_none(tmp_path: Path) -> None:
    run(out=tmp_path / "run", dry=True)
    assert read_config(tmp_path / "run" / "config.json").material == {}


def test_a_large_sample_is_looked_at_in_few_rows() -> None:
    large = Split(torch.ones(3, 3_000_000), torch.zeros(3, dtype=torch.int64))
    assert _samples(large)["means"][0]["mean"] == 1.0
    none = Split(torch.ones(0, 4), torch.zeros(0, dtype=torch.int64))
    assert _samples(none)["samples"] == 0
