"""Accuracy and loss of the whole model, off the clock."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedoptima.core.events import Metrics
from fedoptima.data.dataset import Split
from fedoptima.engine.task import Task


def evaluate(sides: Sequence[nn.Module], task: Task, data: Split | None = None) -> Metrics:
    """Both sides in sequence, on the validation data unless other data are given.

    They are put into evaluation mode, so they must not be the ones that train.
    """
    for side in sides:
        side.eval()
    data = task.validation if data is None else data
    correct = torch.zeros((), dtype=torch.int64, device=data.labels.device)
    total = torch.zeros((), dtype=torch.float64, device=data.labels.device)
    with torch.no_grad():
        for start in range(0, len(data), task.evaluation_batch):
            labels = data.labels[start : start + task.evaluation_batch]
            value: object = task.dataset.prepare(data.inputs[start : start + task.evaluation_batch])
            for side in sides:
                value = side(value)
            assert isinstance(value, Tensor)
            correct += (value.argmax(dim=1) == labels).sum()
            total += task.loss(value, labels).double() * len(labels)
    return (("accuracy", int(correct) / len(data)), ("loss", float(total) / len(data)))
