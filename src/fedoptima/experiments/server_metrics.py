"""metrics.csv of a run over the network, which a full disk must not end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedoptima.analysis.curve import CourseAccount
from fedoptima.core.events import Evaluated
from fedoptima.experiments.metrics_file import MetricsFile
from fedoptima.runtime.disk import Disk
from fedoptima.trace.record import Record


class ServerMetrics(MetricsFile):
    def __init__(self, path: Path, course: CourseAccount, disk: Disk) -> None:
        super().__init__(path, course, devices=False)
        self._disk = disk
        self._name = path.name
        self._whole = True

    def start(self) -> None:
        self._try(super().start)

    def observe(self, record: Record) -> None:
        """After the course did."""
        if isinstance(record.event, Evaluated):
            self.update()

    def update(self) -> None:
        if self._whole:
            self._try(super().update)

    def retry(self) -> None:
        """Write the file anew if something is missing; to be called now and then."""
        if not self._whole:
            self.start()

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._whole = False
            self._disk.failed(self._name, error)
        else:
            self._whole = True
            self._disk.worked(self._name)
