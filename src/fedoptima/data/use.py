"""What a data set is loaded for."""

from __future__ import annotations

from dataclasses import dataclass

from fedoptima.tasks.ready import CLASSIFICATION
from fedoptima.tasks.task import Task


@dataclass(frozen=True)
class Use:
    column: str | None = None  # that it will be divided by: no feature of a table
    train_only: bool = False  # on a device, whose server has the test data
    task: Task = CLASSIFICATION  # what is learned of it


ANY_USE = Use()
