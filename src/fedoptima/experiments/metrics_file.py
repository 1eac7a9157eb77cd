"""metrics.csv: one line for each evaluation, written as it comes."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from fedoptima.analysis.curve import CourseAccount, Point, other_metrics
from fedoptima.trace.plain_files import open_plain

_COLUMNS = [field.name for field in fields(Point) if field.name != "metrics"]


class MetricsFile:
    """Follows an account of the run's course.

    ``devices=False``: the account does not see the devices' records, so their samples are left
    open until the run is over.
    """

    def __init__(self, path: Path, course: CourseAccount, *, devices: bool = True) -> None:
        self._path = path
        self._course = course
        self._open_columns = () if devices else ("device_samples",)
        self._written = 0
        self._others: list[str] = []

    def start(self) -> None:
        """Rewrite the file with what the account knows by now: a resumed run has been cut back."""
        self._others = other_metrics(self._course.points)
        with open_plain(self._path, "w", newline="") as file:
            csv.writer(file).writerow([*_COLUMNS, *self._others])
        self._written = 0
        self._append()

    def update(self) -> None:
        """To be called after every record."""
        if len(self._course.points) > self._written:
            if set(other_metrics(self._course.points[self._written :])) - {*self._others}:
                self.start()  # the first evaluation says which columns there are
            else:
                self._append()

    def _append(self) -> None:
        if len(self._course.points) > self._written:
            new = self._course.points[self._written :]
            self._written = len(self._course.points)
            with open_plain(self._path, "a", newline="") as file:
                csv.writer(file).writerows(self._row(point) for point in new)

    def _row(self, point: Point) -> list[object]:
        known = {**asdict(point), **dict.fromkeys(self._open_columns)}
        return [*(known[column] for column in _COLUMNS), *map(point.metrics.get, self._others)]


def write_metrics(path: Path, points: Iterable[Point]) -> None:
    """Replace the file written so far by the complete one."""
    course = CourseAccount()
    course.points.extend(points)
    MetricsFile(path, course).start()
