"""Reads a trace back, finished or still being written."""

from __future__ import annotations

import heapq
import json
import logging
import zlib
from collections.abc import Iterator
from pathlib import Path

from fedoptima.core.errors import ConfigError
from fedoptima.core.text import printable
from fedoptima.core.types import NodeId
from fedoptima.trace.description import RunDescription, check_schema
from fedoptima.trace.device_record import read_device_record
from fedoptima.trace.plain_files import compressed_lines
from fedoptima.trace.record import Record
from fedoptima.trace.run_folder import RunFiles, device_of
from fedoptima.trace.writer import read_lines, read_records

_log = logging.getLogger(__name__)


def read_header(path: Path) -> dict[str, object]:
    """Its first line."""
    try:
        header: dict[str, object] = json.loads(next(compressed_lines(path), b""))
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise ConfigError(f"{path}: not a trace ({error})") from error
    check_schema(header.get("schema") if isinstance(header, dict) else None, path)
    return header


def read_description(path: Path) -> RunDescription:
    """What the run was, from its trace's first line."""
    header = read_header(path)
    if "recipe" not in header:
        raise ConfigError(f"{path}: a device's own trace; give the folder of the run it was in")
    return RunDescription.from_plain(header, path)


def read_trace(path: Path, *, gaps: bool = True) -> Iterator[Record]:
    """All nodes' records by time; at equal times the server's come first.

    What a device recorded comes from another machine: a part that cannot be read is named in the
    log and skipped. Without ``gaps``, so is everything that this device recorded after it.
    """
    devices = (_read_device(file, gaps) for file in RunFiles(path.parent).device_traces())
    return heapq.merge(_read_own(path), *devices, key=lambda record: record.at)


def _read_own(path: Path) -> Iterator[Record]:
    """A simulation's trace holds all nodes' records; over the network devices have their own."""
    read_header(path)
    for _, record in read_records(path):
        yield record


def _read_device(path: Path, gaps: bool) -> Iterator[Record]:
    device, skipped = NodeId(device_of(path)), Skipped(path)
    try:
        read_header(path)
        for number, line in enumerate(read_lines(path), start=2):
            try:
                record = read_device_record(line, device)
            except ValueError as error:
                skipped.add(number, error)
                if not gaps:
                    break
                continue
            yield record
    except ConfigError as error:
        _log.warning("%s: the rest of this file is left out", error)
    if skipped.lines:
        _log.warning("%s", skipped)


class Skipped:
    """The lines of a device's trace that cannot be read."""

    def __init__(self, path: Path) -> None:
        self.lines = 0
        self._path = path
        self._first = ""

    def add(self, number: int, error: ValueError) -> None:
        self.lines += 1
        self._first = self._first or f"line {number}: {printable(str(error))}"

    def __str__(self) -> str:
        more = f", and {self.lines - 1:,} more" if self.lines > 1 else ""
        return f"{self._path}: records that cannot be read are left out ({self._first}{more})"
