"""Reads a trace back, finished or still being written."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from fedoptima.core.errors import ConfigError
from fedoptima.trace.record import Record
from fedoptima.trace.writer import SCHEMA, read_records


def read_header(path: Path) -> dict[str, object]:
    """The run's resolved configuration and where the trace comes from."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            header = json.loads(file.readline())
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ConfigError(f"{path}: not a trace ({error})") from error
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise ConfigError(f"{path}: not a trace of schema {SCHEMA}; run the recipe again")
    return header


def read_trace(path: Path) -> Iterator[Record]:
    read_header(path)
    for _, record in read_records(path):
        yield record
