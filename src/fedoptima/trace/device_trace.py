"""A device's own records in a real run, kept by the server: one append-only file per device.

Every append is one complete gzip member, so no compressor is kept in memory between two of them,
and after a kill the file is complete up to its last member. Times are on the server's clock and
never decrease, so a reader can merge all files of a run in one pass.
"""

from __future__ import annotations

import gzip
import json
import logging
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedoptima.core.errors import ConfigError, ProtocolViolation
from fedoptima.core.types import NodeId
from fedoptima.trace.description import SCHEMA
from fedoptima.trace.device_record import read_device_record
from fedoptima.trace.plain_files import check_growth, may_pass, open_plain
from fedoptima.trace.reader import read_header
from fedoptima.trace.record import Record, time_of
from fedoptima.trace.writer import COMPRESSION

_CHUNK = 1 << 16
_log = logging.getLogger(__name__)


class DeviceMark(NamedTuple):
    """How far a file had come: what is before it need not be read to continue the file."""

    nbytes: int = 0
    records: int = 0
    last_at: float = 0.0


class DeviceTrace:
    def __init__(self, path: Path, mark: DeviceMark | None = None) -> None:
        """Continue the file at ``path``, or start it. ``mark``: a state that it had before."""
        self._path = path
        self._known = mark or DeviceMark()
        self._set(self._known)
        self._opened = False
        try:
            self.open()
        except OSError as error:
            if not may_pass(error):
                raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error

    def open(self) -> None:
        """Done before anything is written: a file that could not be read is not written to.

        Raises OSError, and may be called again then: until it works the mark is all that is known.
        """
        if self._opened:
            return
        if self._path.exists():
            reached = self._path.stat().st_size >= self._known.nbytes
            self._set(self._known if reached else DeviceMark())  # shorter: it is another file
            try:
                self._continue()
            except OSError:
                self._set(self._known)
                raise
        else:
            self._set(DeviceMark())
        if not self.nbytes:
            self._begin()
        self._opened = True

    @property
    def mark(self) -> DeviceMark:
        return DeviceMark(self.nbytes, self.records, self.last_at)

    def _set(self, mark: DeviceMark) -> None:
        self.nbytes, self.records, self.last_at = mark  # on disk

    def append(self, lines: Sequence[str]) -> None:
        """Records in their plain form, with times that do not decrease; the OS has them then."""
        if not lines:
            return
        self.open()
        member = _member("".join(f"{line}\n" for line in lines))
        try:
            with open_plain(self._path, "ab") as file:
                file.write(member)
        except OSError:
            os.truncate(self._path, self.nbytes)  # an incomplete member would hide all that follow
            raise
        self.nbytes += len(member)
        self.records += len(lines)
        self.last_at = time_of(lines[-1])

    def append_restamped(
        self, lines: Sequence[str], node: NodeId, ours: Callable[[float], float]
    ) -> list[Record]:
        """Records of ``node`` on its clock; ``ours`` gives a time on the server's.

        Returns them as written, which is in our own words: not a byte of ``lines`` is. Raises
        ProtocolViolation if they are not ``node``'s.
        """
        self.open()
        stamped, at = [], self.last_at
        for line in lines:
            try:
                record = read_device_record(line, node)
            except ValueError as error:
                raise ProtocolViolation(f"{node} sent {error}") from None
            at = max(at, ours(record.at))  # a new clock offset may give an earlier time
            stamped.append(replace(record, at=at))
        self.append([record.to_line() for record in stamped])
        return stamped

    # ---- the file ----------------------------------------------------------------------------

    def _begin(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        header = _member(json.dumps({"schema": SCHEMA}) + "\n")
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(header)
        temporary.rename(self._path)  # a file without a header is no trace
        self.nbytes = len(header)

    def _continue(self) -> None:
        """A file that cannot be continued is kept under another name."""
        try:
            self._take_stock()
        except (ConfigError, ValueError) as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and may_pass(cause):
                raise cause from None  # says nothing about the file
            aside = self._path.with_name(f"{self._path.name}.damaged")
            _log.warning("%s cannot be continued, and is kept as %s", error, aside.name)
            self._path.replace(aside)
            self._set(DeviceMark())

    def _take_stock(self) -> None:
        last = b""
        for end, text in _whole_members(self._path, self.nbytes):
            if self.nbytes:  # the first holds the header alone
                self.records += text.count(b"\n")
                last = text
            self.nbytes = end
        if self.nbytes:
            read_header(self._path)  # may refuse it
        if last:
            self.last_at = _time_of_last(last, self._path)
        torn = self._path.stat().st_size - self.nbytes
        if torn:
            _log.warning(
                "%s: the last %d bytes are an incomplete record and are cut off", self._path, torn
            )
            os.truncate(self._path, self.nbytes)


def _time_of_last(text: bytes, path: Path) -> float:
    try:
        at = time_of(text.rstrip(b"\n").rpartition(b"\n")[2].decode())
        if not math.isfinite(at):
            raise ValueError(f"at {at} s")
        return at
    except ValueError as error:
        raise ConfigError(f"{path}: its last record cannot be read ({error})") from error


def _member(text: str) -> bytes:
    return gzip.compress(text.encode(), COMPRESSION, mtime=0)


def _whole_members(path: Path, begin: int) -> Iterator[tuple[int, bytes]]:
    """Where each gzip member ends, and its content; up to the first that is incomplete."""
    with open_plain(path, "rb") as file:
        file.seek(begin)
        end, rest, total = begin, b"", 0
        while rest or (rest := file.read(_CHUNK)):
            member, text = zlib.decompressobj(wbits=31), []
            while not member.eof:
                if not rest and not (rest := file.read(_CHUNK)):
                    return
                try:
                    text.append(member.decompress(rest))
                except zlib.error:
                    return
                end += len(rest) - len(member.unused_data)
                total += len(text[-1])
                check_growth(total, end)
                rest = member.unused_data
            yield end, b"".join(text)
