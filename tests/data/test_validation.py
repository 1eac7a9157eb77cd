from __future__ import annotations

import pytest
import torch

from fedoptima.core.errors import ConfigError
from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset
from fedoptima.data.partition import hold_out


def uneven() -> Dataset:
    labels = torch.tensor([0] * 40 + [1] * 20 + [2] * 1)
    data = (torch.arange(61.0)[:, None], labels)
    return as_dataset(data, data)


def test_the_share_is_taken_from_every_class_but_never_all_of_it():
    kept, held = hold_out(uneven(), 0.75, seed=1)
    assert torch.bincount(held.labels, minlength=3).tolist() == [30, 15, 0]
    assert torch.bincount(kept.train.labels).tolist() == [10, 5, 1]


def test_no_sample_is_lost_or_doubled_and_the_test_part_stays():
    dataset = uneven()
    kept, held = hold_out(dataset, 0.25, seed=1)
    both = torch.cat([kept.train.inputs, held.inputs]).flatten()
    assert both.sort().values.tolist() == list(range(61))
    assert kept.test is dataset.test


def test_the_seed_decides():
    first, again, other = (hold_out(uneven(), 0.25, seed)[1].inputs for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan")])
def test_a_share_outside_of_0_to_1_is_an_error(share: float):
    with pytest.raises(ConfigError, match=r"data\.validation = .*above 0 and below 1"):
        hold_out(uneven(), share, seed=1)


def test_a_share_that_holds_out_nothing_is_an_error():
    with pytest.raises(ConfigError, match="holds out no sample of the 61"):
        hold_out(uneven(), 0.001, seed=1)
