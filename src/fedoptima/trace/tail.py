"""Follows a run's traces while they are being written: each call gives what has been added.

A trace is a chain of gzip members, the last of them unfinished. A resumed run cuts its trace back;
the tail notices that the file is shorter than what it has read, and says so: begin again.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from fedoptima.core.errors import ConfigError
from fedoptima.trace.reader import DEVICES
from fedoptima.trace.record import Record

_AT_ONCE = 1 << 22  # bytes read in one call: a page must answer, however long the trace


class CutBack(Exception):
    """The run was resumed from an earlier point: what was read from this file is void."""


class FileTail:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._member = zlib.decompressobj(wbits=31)
        self._text = b""
        self._header = True  # the next line is it

    def read(self) -> list[Record]:
        """The records added since the last call, at most about a million characters of them."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return []
        if size < self._at:
            raise CutBack(str(self._path))
        if size == self._at:
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read(_AT_ONCE)
        self._at += len(data)
        return self._records(self._inflate(data))

    def _inflate(self, data: bytes) -> bytes:
        text = [self._text]
        try:
            while data:
                text.append(self._member.decompress(data))
                data = self._member.unused_data
                if self._member.eof:
                    self._member = zlib.decompressobj(wbits=31)
        except zlib.error as error:
            raise ConfigError(f"{self._path}: a damaged trace ({error})") from error
        return b"".join(text)

    def _records(self, text: bytes) -> list[Record]:
        *lines, self._text = text.split(b"\n")
        if lines and self._header:
            del lines[0]
            self._header = False
        return [Record.from_line(line.decode()) for line in lines]


class RunTail:
    """The server's records and, in a real run, those of every device; each node's in order."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._files: dict[Path, FileTail] = {}

    def read(self) -> list[Record]:
        """What all files have gained, by time. Raises `CutBack` where a new tail must begin."""
        paths = [self._run / "trace.jsonl.gz", *sorted((self._run / DEVICES).glob("*.jsonl.gz"))]
        records: list[Record] = []
        for path in paths:
            if path not in self._files:
                self._files[path] = FileTail(path)
            records += self._files[path].read()
        return sorted(records, key=lambda record: record.at)
