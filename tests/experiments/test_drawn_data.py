"""Runs on a map-style dataset whose items are left to chance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedoptima.core.events import JobFailed
from fedoptima.experiments.result import Result
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.experiments.simulation import resume
from fedoptima.trace.reader import read_trace
from fedoptima.verification.replay import replay
from tests.experiments.runs import data, network, run
from tests.experiments.test_interrupted import after


class Flipped(TorchDataset[tuple[Tensor, Tensor]]):
    """The usual pictures, half of them mirrored; counts the pictures of each kind."""

    def __init__(self, spoilt_after: int | None = None) -> None:
        self.inputs, self.labels = data()
        self.seen: list[set[bool]] = [set() for _ in self.labels]
        self.fetched = 0
        self.spoilt_after = spoilt_after

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.fetched += 1
        flip = bool(torch.rand(()) < 0.5)
        self.seen[index].add(flip)
        picture = self.inputs[index].flip(-1) if flip else self.inputs[index]
        if self.spoilt_after is not None and index == 17 and self.fetched > self.spoilt_after:
            picture = picture / 0
        return picture, self.labels[index]


def on_items(train: object = None, cache: bool = False, **changes: object) -> Result:
    table = {"partition": {"kind": "iid"}, "cache": cache}
    return run(train=Flipped() if train is None else train, data=table, **changes)


def test_a_random_flip_acts_in_every_epoch() -> None:
    items = Flipped()
    on_items(items, method="fl", epochs=5)
    both = sum(len(seen) == 2 for seen in items.seen)
    assert both > len(items) / 2


def test_the_same_seed_gives_the_same_weights_and_one_draw_gives_others() -> None:
    first = on_items().weights_digest
    torch.manual_seed(77)
    assert on_items().weights_digest == first
    assert on_items(cache=True).weights_digest != first


def test_a_cached_item_is_drawn_once() -> None:
    items = Flipped()
    on_items(items, cache=True)
    assert items.fetched == len(items)


def test_a_run_resumed_in_mid_epoch_draws_the_same(tmp_path: Path) -> None:
    unbroken = on_items()
    with pytest.raises(Interrupted):
        on_items(out=tmp_path / "run", checkpoint_every=1e9, interrupted=after(60))
    result = resume(tmp_path / "run", model=network(), train=Flipped(), test=data(48, seed=1))
    assert result.weights_digest == unbroken.weights_digest


def test_executing_a_run_again_draws_the_same(tmp_path: Path) -> None:
    on_items(out=tmp_path / "run")
    again = replay(
        tmp_path / "run", weights=True, model=network(), train=Flipped(), test=data(48, seed=1)
    )
    assert again.identical
    assert again.weights is not None


def test_a_dry_run_draws_no_more_than_the_load_and_an_example() -> None:
    items = Flipped()
    on_items(items, dry=True)
    assert items.fetched <= len(items) + 4


def test_an_item_that_turns_nan_during_a_run_is_named_by_its_device(tmp_path: Path) -> None:
    items = Flipped(spoilt_after=150)
    result = on_items(items, out=tmp_path / "run", epochs=5)
    assert result.accuracy is not None
    run_directory, *_ = RunDirectory.open(tmp_path / "run")
    errors = [r.event.error for r in read_trace(run_directory.trace) if type(r.event) is JobFailed]
    assert any("inputs are NaN or infinite in row 17 as drawn now" in error for error in errors)
