"""Scalars for TensorBoard, one step an evaluation, in a folder named after the run's.

Its "relative" axis is the run's clock, virtual or real. Idle shares and queue go with the latest
evaluation, as of when it was noticed.
"""

from __future__ import annotations

import time
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from fedoptima.analysis.metrics import Moment, condition, evaluations
from fedoptima.analysis.summary import Summary
from fedoptima.core.errors import ConfigError
from fedoptima.tracking.tracker import Ending, Subject


class TensorBoard:
    def __init__(self, subject: Subject, parent: Path) -> None:
        self._folder = parent / subject.name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--tensorboard {parent}: cannot be made ({error.strerror}); choose another folder"
            ) from error
        self._writer: SummaryWriter | None = None
        self._began = 0.0
        self._told = 0  # evaluations

    def observe(self, moment: Moment) -> None:
        self._tell(moment.summary)

    def finish(self, ending: Ending) -> None:
        self._tell(ending.summary)

    def _tell(self, summary: Summary) -> None:
        writer = self._writer or self._open(summary)
        fresh = list(evaluations(summary.curve))[self._told :]
        for figures in fresh:
            self._told += 1
            if figures is fresh[-1]:
                figures |= condition(summary)
            for name, value in figures.items():
                at = self._began + figures["seconds"]
                writer.add_scalar(name, value, self._told, walltime=at)
        if fresh:
            writer.flush()

    def _open(self, summary: Summary) -> SummaryWriter:
        """Not before the first look: only then it is known how far a resumed run had come."""
        if any(self._folder.iterdir()):
            self._told = len(summary.curve)
        # Steps from here on that are there already are of a past that was taken back.
        self._writer = SummaryWriter(str(self._folder), purge_step=self._told + 1)
        self._began = time.time() - summary.seconds
        return self._writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
