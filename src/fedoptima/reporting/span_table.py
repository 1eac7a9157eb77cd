"""Spans as a CSV table: one line per span, in the order in which they became final."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import TextIO

from fedoptima.analysis.spans import Span

COLUMNS = ("node", "kind", "what", "start", "end", "peer", "bytes")
_DIGITS = 9  # of a second: below that, times are rounding


class CsvWriter:
    def __init__(self, file: TextIO) -> None:
        self.lines = 0  # without the header
        self._table = csv.writer(file, lineterminator="\n")
        self._table.writerow(COLUMNS)

    def add(self, spans: Iterable[Span]) -> None:
        for node, kind, start, end, what, peer, nbytes in spans:
            times = round(start, _DIGITS), round(end, _DIGITS)
            self._table.writerow((node, kind.value, what, *times, peer, nbytes or ""))
            self.lines += 1
