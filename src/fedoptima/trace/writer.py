"""Writes a trace as gzipped lines: first a header (a JSON object), then one record a line.

The file is a chain of gzip members, and each is written whole or not at all. So after a kill the
file can be cut back to a mark and continued; readers see one stream.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from fedoptima.core.errors import ConfigError
from fedoptima.core.events import Gap
from fedoptima.core.serialization import freeze, thaw
from fedoptima.trace.description import SCHEMA
from fedoptima.trace.plain_files import compressed_lines, open_plain
from fedoptima.trace.record import UNREADABLE, Record

READABLE_AFTER = 1.0  # seconds: a member for each record would be badly compressed
COMPRESSION = 1  # a trace is repetitive: higher levels cost time and gain little
_MOST_WAITING = 1 << 20  # characters: with more, a member gets no smaller
_MOST_HELD = 1 << 28  # characters, while the disk is full
_PAUSE = 10.0  # times as long as a try to write took that failed

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mark:
    """A point to resume from."""

    nbytes: int
    records: int
    digest: str  # hexadecimal: the chain's state
    gap: Gap | None = None  # its records until here could not be written

    def check(self, path: Path, way_out: str = "") -> None:
        """Raises if the file at ``path`` is there and does not reach it."""
        if path.exists() and path.stat().st_size < self.nbytes:
            raise ConfigError(f"{path}: is shorter than it was at the mark{way_out}")

    def plain(self) -> list[object]:
        gap = [] if self.gap is None else [freeze(self.gap)]
        return [self.nbytes, self.records, self.digest, *gap]

    @classmethod
    def from_plain(cls, plain: object) -> Mark:
        nbytes, records, digest, *gap = cast("tuple[int, int, str, *tuple[object, ...]]", plain)
        return cls(nbytes, records, digest, *cast("list[Gap]", list(map(thaw, gap))))


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


class TraceFile:
    """Only ever as long as its whole members are, also after a write that failed half-way."""

    def __init__(self, path: Path, nbytes: int = 0) -> None:
        """``nbytes``: what is kept of a file that is continued."""
        self.nbytes = nbytes
        self._file = open_plain(path, "r+b" if nbytes else "wb", buffering=0)
        self._file.truncate(nbytes)

    def append(self, lines: Sequence[str]) -> None:
        """The OS has them when this returns; raises OSError if it did not take all of them."""
        text = "".join(f"{line}\n" for line in lines).encode()
        member = memoryview(gzip.compress(text, COMPRESSION, mtime=0))  # the same run, same bytes
        try:
            self._file.seek(self.nbytes)
            written = 0
            while written < len(member):  # a disk that is nearly full takes a part
                written += self._file.write(member[written:])
        except OSError:
            self.cut_back()
            raise
        self.nbytes += len(member)

    def cut_back(self) -> None:
        with suppress(OSError):  # half a member is overwritten by the next one
            self._file.truncate(self.nbytes)

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class TraceWriter:
    """With ``path=None`` nothing is written and only the digest is kept."""

    def __init__(self, path: Path | None, header: Mapping[str, object]) -> None:
        self._start(TraceFile(path) if path else None, Digest())
        if self.file:
            self.file.append([json.dumps({"schema": SCHEMA, **header})])

    def _start(self, file: TraceFile | None, digest: Digest) -> None:
        self.file = file
        self.digest = digest
        self._lines: list[str] = []
        self._waiting = 0  # characters of them
        self._flushed = time.monotonic()

    @classmethod
    def resume(cls, path: Path, mark: Mark) -> Self:
        """Continue after ``mark``. What is before it is not read, so it takes no time, and damage
        in an old part of a trace does not matter here."""
        mark.check(path, "; restart the run")  # truncating it would fill it up with zeros
        writer = cls.__new__(cls)
        writer._start(TraceFile(path, mark.nbytes), Digest(mark.records, mark.digest))
        return writer

    def write(self, record: Record) -> None:
        line = record.to_line()
        self.digest.add(line)
        if self.file:
            self._lines.append(line)
            self._waiting += len(line)
            if self._waiting >= _MOST_WAITING:
                self._flush()

    def keep_readable(self) -> None:
        """Write what has waited for a second; to be called repeatedly."""
        if time.monotonic() - self._flushed >= READABLE_AFTER:
            self._flush()

    def mark(self) -> Mark:
        """Everything written so far is on disk and readable when this returns."""
        self._flush()
        if self.file:
            self.file.sync()
        size = self.file.nbytes if self.file else 0
        return Mark(size, self.digest.records, self.digest.hexdigest())

    def close(self) -> None:
        if self.file:
            try:
                self._flush()
            finally:
                self.file.close()

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        if self.file and self._lines:
            lines, self._lines, self._waiting = self._lines, [], 0
            self.file.append(lines)


class PatientWriter(TraceWriter):
    """Of a simulation, which goes on while its disk is full: what was not written waits for room.

    A mark, and the end, do not wait: they raise OSError.
    """

    _said = False
    _again = 0.0  # when it is tried again: every try compresses all that waits
    _held = 0  # characters that wait since a try failed
    _passes = False

    def write(self, record: Record) -> None:
        with self._patience():
            super().write(record)

    def keep_readable(self) -> None:
        with self._patience():
            super().keep_readable()

    @contextmanager
    def _patience(self) -> Iterator[None]:
        self._passes = self._held <= _MOST_HELD and time.monotonic() < self._again
        try:
            yield
        except OSError as error:
            if self._held > _MOST_HELD:
                raise
            if not self._said:
                _log.warning(
                    "the trace cannot be written (%s): the run continues, and what is missing is "
                    "written when there is room",
                    error.strerror,
                )
            self._said = True
        finally:
            self._passes = False

    def _flush(self) -> None:
        began, lines = time.monotonic(), self._lines
        if self._said:
            self._held, self._waiting = self._held + self._waiting, 0
        if self._passes:
            self._flushed = began
            return
        try:
            super()._flush()
        except OSError:
            self._lines, self._held = lines, sum(map(len, lines))
            now = time.monotonic()
            self._again = now + max(READABLE_AFTER, _PAUSE * (now - began))
            raise
        self._held = 0
        if self._said and not self._lines:
            _log.warning("the trace is written again, and nothing is missing")
            self._said = False


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
    except EOFError:
        return
    except (gzip.BadGzipFile, zlib.error, ValueError) as error:
        if str(error).startswith("Not a gzipped file"):  # where the next member should begin
            return
        raise ConfigError(f"{path}: a damaged trace ({error}); run the recipe again") from error
