"""Follows a trace while it is being written: each call gives what has been added.

A trace is a chain of gzip members, the last of them unfinished. A resumed run cuts its trace back
and continues it; the tail notices that the file differs from what it has read so far, and reports
that reading has to start over.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import BinaryIO

from fedoptima.core.errors import ConfigError
from fedoptima.trace.record import Record

_MOST = 5_000  # records in one call, about: a page must answer, however long the trace
_CHUNK = 1 << 15  # bytes of the file: a few thousand records
_REMEMBERED = 64  # bytes: two different continuations do not agree in this many


class CutBack(Exception):
    """The run was resumed from an earlier point: what was read from this file is void."""


class FileTail:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._before = b""  # the last bytes before that
        self._member = zlib.decompressobj(wbits=31)
        self._text = b""  # of a line that has no end yet
        self._header = True  # the next line is it

    def read(self) -> list[Record]:
        """The records added since the last call, a few thousand at most; none: all are read."""
        try:
            with self._path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            if self._at:
                raise CutBack(str(self._path)) from None
            return []
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be read ({error.strerror})") from error

    def _read(self, file: BinaryIO) -> list[Record]:
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
            except (zlib.error, ValueError, TypeError) as error:
                raise ConfigError(
                    f"{self._path}: a damaged trace ({error}); run the recipe again"
                ) from error
        return records

    def _inflate(self, data: bytes) -> None:
        while data:
            self._text += self._member.decompress(data)
            data = self._member.unused_data
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=31)

    def _complete_records(self) -> list[Record]:
        *lines, self._text = self._text.split(b"\n")
        if lines and self._header:
            del lines[0]
            self._header = False
        return [Record.from_line(line.decode()) for line in lines]
