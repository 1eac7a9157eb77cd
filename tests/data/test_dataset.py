from __future__ import annotations

import torch

from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Normalise, Split


def test_normalising_is_the_textbook_formula():
    pixels = torch.tensor([0, 128, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    prepared = Normalise((0.5, 0.4, 0.3), (0.2, 0.1, 0.5))(pixels)
    expected = torch.tensor([(0 - 0.5) / 0.2, (128 / 255 - 0.4) / 0.1, (1 - 0.3) / 0.5])
    assert prepared.dtype == torch.float32
    assert torch.allclose(prepared.flatten(), expected)


def test_normalising_does_not_write_to_its_input():
    pixels = torch.ones(2, 1, 2, 2)
    Normalise((0.5,), (0.5,))(pixels)
    assert torch.equal(pixels, torch.ones(2, 1, 2, 2))


def test_moving_a_dataset_moves_both_splits_and_keeps_the_rest():
    data = (torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    dataset = as_dataset(data, data, name="mine")
    moved = dataset.to("meta")
    assert {t.device.type for s in (moved.train, moved.test) for t in (s.inputs, s.labels)} == {
        "meta"
    }
    assert (moved.name, moved.classes) == ("mine", 2)
    assert dataset.train.inputs.device.type == "cpu"


def test_taking_rows_keeps_inputs_and_labels_together():
    split = Split(torch.arange(5.0), torch.arange(5)).take(torch.tensor([4, 1]))
    assert split.inputs.tolist() == [4.0, 1.0]
    assert split.labels.tolist() == [4, 1]
    assert len(split) == 2
