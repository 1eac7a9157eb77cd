"""Writes a trace as gzipped lines: first a header (a JSON object), then one record a line.

The file is a chain of gzip members. A member is closed at every `mark`, so after a kill the file
can be cut back to the last mark and continued; readers see one stream.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedoptima.core.errors import ConfigError
from fedoptima.trace.description import SCHEMA
from fedoptima.trace.plain_files import compressed_lines, open_plain
from fedoptima.trace.record import UNREADABLE, Record

_READABLE_AFTER = 1.0  # seconds: each flush costs some compression
COMPRESSION = 1  # a trace is repetitive: higher levels cost time and gain little


@dataclass(frozen=True, slots=True)
class Mark:
    """A point to resume from."""

    nbytes: int
    records: int
    digest: str  # hexadecimal: the chain's state


class Digest:
    """A fingerprint of all records so far: equal for two runs in which the same things happened.

    A chain, ``h = sha256(h + line)``: its whole state is 32 bytes, so a checkpoint can hold it and
    a resumed run need not hash again what was written before.
    """

    def __init__(self, records: int = 0, state: str = "00" * 32) -> None:
        self._state = bytes.fromhex(state)
        self.records = records

    def add(self, line: str) -> None:
        self._state = hashlib.sha256(self._state + line.encode()).digest()
        self.records += 1

    def hexdigest(self) -> str:
        return self._state.hex()


class TraceWriter:
    """With ``path=None`` nothing is written and only the digest is kept."""

    _flushed: float

    def __init__(self, path: Path | None, header: Mapping[str, object]) -> None:
        self.digest = Digest()
        self._file = open_plain(path, "wb") if path else None
        self._open_member()
        if self._member:
            self._member.write(json.dumps({"schema": SCHEMA, **header}) + "\n")

    @classmethod
    def resume(cls, path: Path, mark: Mark) -> TraceWriter:
        """Continue after ``mark``. What is before it is not read, so it takes no time, and damage
        in an old part of a trace does not matter here."""
        if path.stat().st_size < mark.nbytes:  # truncating it would fill it up with zeros
            raise ConfigError(f"{path}: is shorter than it was at the mark; restart the run")
        with open_plain(path, "r+b") as file:
            file.truncate(mark.nbytes)
        writer = cls.__new__(cls)
        writer.digest = Digest(mark.records, mark.digest)
        writer._file = open_plain(path, "ab")
        writer._open_member()
        return writer

    def write(self, record: Record) -> None:
        line = record.to_line()
        self.digest.add(line)
        if self._member:
            self._member.write(f"{line}\n")

    def keep_readable(self) -> None:
        """Flush what was written until a second ago; to be called repeatedly."""
        now = time.monotonic()
        if self._member and now - self._flushed >= _READABLE_AFTER:
            self._flushed = now
            self._member.flush()

    def mark(self) -> Mark:
        """Everything written so far is on disk and readable when this returns."""
        self._close_member()
        size = 0
        if self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
            size = self._file.tell()
        self._open_member()
        return Mark(size, self.digest.records, self.digest.hexdigest())

    def close(self) -> None:
        self._close_member()
        if self._file:
            self._file.close()

    def _open_member(self) -> None:
        self._flushed = time.monotonic()
        self._member: io.TextIOWrapper | None = None
        if self._file:
            # mtime=0: the same run gives the same bytes.
            member = gzip.GzipFile(
                fileobj=self._file, mode="wb", compresslevel=COMPRESSION, mtime=0
            )
            self._member = io.TextIOWrapper(member, encoding="utf-8", write_through=False)

    def _close_member(self) -> None:
        if self._member:
            self._member.close()


def read_records(path: Path) -> Iterator[tuple[str, Record]]:
    """Every record with the line it was read from."""
    for number, line in enumerate(read_lines(path), start=2):
        try:
            yield line, Record.from_line(line)
        except UNREADABLE as error:
            raise ConfigError(
                f"{path}: line {number} of a damaged trace ({error}); run the recipe again"
            ) from error


def read_lines(path: Path) -> Iterator[str]:
    """The records' lines, without the header. A trace cut off by a kill ends where it was cut."""
    # A line ends at "\n" only: a text file of Python's would end it at other marks as well.
    lines = compressed_lines(path)
    try:
        next(lines, None)
        for line in lines:
            if not line.endswith(b"\n"):
                return
            yield line[:-1].decode()
    except (EOFError, gzip.BadGzipFile):
        return
    except (zlib.error, ValueError) as error:
        raise ConfigError(f"{path}: a damaged trace ({error}); run the recipe again") from error
