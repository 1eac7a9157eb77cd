"""Follows a trace while it is being written: each call gives what has been added.

A trace is a chain of gzip members, the last of them unfinished. A resumed run cuts its trace back
and continues it; the tail notices that the file differs from what it has read so far, and reports
that reading has to start over.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import IO

from fedoptima.core.errors import ConfigError
from fedoptima.core.text import printable
from fedoptima.core.types import NodeId
from fedoptima.trace.device_record import read_device_record
from fedoptima.trace.plain_files import LONGEST_LINE, Bomb, check_growth, open_plain
from fedoptima.trace.reader import Skipped
from fedoptima.trace.record import UNREADABLE, Record

_MOST = 5_000  # records in one call, about: a page must answer, however long the trace
_CHUNK = 1 << 15  # bytes of the file: a few thousand records
_REMEMBERED = 64  # bytes: two different continuations do not agree in this many


class CutBack(Exception):
    """The run was resumed from an earlier point: what was read from this file is void."""


class DamagedFile(ConfigError):
    """Nothing more can be read from this file."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class FileTail:
    def __init__(self, path: Path, device: NodeId | None = None) -> None:
        """``device``: whose file it is. A line of it that cannot be read is skipped."""
        self.skipped = Skipped(path)
        self._path = path
        self._device = device
        self._lines = 0
        self._at = self._inflated = 0
        self._before = b""  # the last bytes before that
        self._member = zlib.decompressobj(wbits=31)
        self._text = b""  # of a line that has no end yet
        self._header = True  # the next line is it

    def read(self) -> list[Record]:
        """The records added since the last call, a few thousand at most; none: all are read."""
        try:
            with open_plain(self._path, "rb") as file:
                return self._read(file)
        except FileNotFoundError:
            if self._at:
                raise CutBack(str(self._path)) from None
            return []
        except OSError as error:
            raise DamagedFile(self._path, f"cannot be read ({error.strerror})") from error

    def _read(self, file: IO[bytes]) -> list[Record]:
        file.seek(self._at - len(self._before))
        if file.read(len(self._before)) != self._before:
            raise CutBack(str(self._path))
        records: list[Record] = []
        while len(records) < _MOST and (data := file.read(_CHUNK)):
            self._at += len(data)
            self._before = (self._before + data)[-_REMEMBERED:]
            try:
                self._inflate(data)
                records += self._complete_records()
            except (zlib.error, *UNREADABLE) as error:
                problem = f"a damaged trace ({printable(str(error))}); run the recipe again"
                raise DamagedFile(self._path, problem) from error
        return records

    def _inflate(self, data: bytes) -> None:
        while data:
            text = self._member.decompress(data)
            self._inflated += len(text)
            check_growth(self._inflated, self._at)
            self._text += text
            data = self._member.unused_data
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=31)

    def _complete_records(self) -> list[Record]:
        *lines, self._text = self._text.split(b"\n")
        if len(self._text) > LONGEST_LINE:
            raise Bomb(f"a line is longer than {LONGEST_LINE:,} bytes")
        if lines and self._header:
            del lines[0]
            self._header = False
        if self._device is None:
            return [Record.from_line(line.decode()) for line in lines]
        return [record for line in lines if (record := self._device_record(line)) is not None]

    def _device_record(self, line: bytes) -> Record | None:
        assert self._device is not None
        self._lines += 1
        try:
            return read_device_record(line.decode(), self._device)
        except ValueError as error:
            self.skipped.add(1 + self._lines, error)
            return None
