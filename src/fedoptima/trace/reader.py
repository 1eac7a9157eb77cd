"""Reads a trace back, finished or still being written."""

from __future__ import annotations

import gzip
import heapq
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from fedoptima.core.errors import ConfigError
from fedoptima.trace.description import RunDescription, check_schema
from fedoptima.trace.record import Record, time_of
from fedoptima.trace.run_folder import RunFiles
from fedoptima.trace.writer import read_lines, read_records


def read_header(path: Path) -> dict[str, object]:
    """Its first line."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            header: dict[str, object] = json.loads(file.readline())
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ConfigError(f"{path}: not a trace ({error})") from error
    check_schema(header.get("schema") if isinstance(header, dict) else None, path)
    return header


def read_description(path: Path) -> RunDescription:
    """What the run was, from its trace's first line."""
    header = read_header(path)
    if "recipe" not in header:
        raise ConfigError(f"{path}: a device's own trace; give the folder of the run it was in")
    return RunDescription.from_plain(header, path)


def read_trace(path: Path) -> Iterator[Record]:
    """All nodes' records by time; at equal times the server's come first."""
    return heapq.merge(*map(_read_file, _files(path)), key=lambda record: record.at)


def _files(path: Path) -> list[Path]:
    """A simulation's trace holds all nodes' records; over the network devices have their own."""
    return [path, *RunFiles(path.parent).device_traces()]


def _read_file(path: Path) -> Iterator[Record]:
    read_header(path)
    for _, record in read_records(path):
        yield record


def last_time(path: Path) -> float:
    """When the last record of a run was made, of any node; 0 if there is none."""
    last = 0.0
    for file in _files(path):
        read_header(file)
        last = max(last, max(map(time_of, read_lines(file)), default=0.0))
    return last
