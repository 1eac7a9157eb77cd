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
from pathlib import Path
from typing import get_args

from fedoptima.core.effects import Effect
from fedoptima.core.errors import ConfigError, ProtocolViolation
from fedoptima.core.events import Event
from fedoptima.core.types import NodeId
from fedoptima.trace.description import SCHEMA
from fedoptima.trace.reader import read_header
from fedoptima.trace.record import encode, time_of
from fedoptima.trace.writer import COMPRESSION

_CHUNK = 1 << 16
_EVENTS = frozenset(cls.__name__ for cls in get_args(Event))
_EFFECTS = frozenset(cls.__name__ for cls in get_args(Effect))
_log = logging.getLogger(__name__)


class DeviceTrace:
    def __init__(self, path: Path) -> None:
        """Continue the file at ``path``, or start it."""
        self._path = path
        self.records = 0  # on disk
        self.last_at = 0.0
        self._nbytes = 0
        try:
            if path.exists():
                self._take_stock()
            if not self._nbytes:
                self._begin()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error

    def append(self, lines: Sequence[str]) -> None:
        """Records in their plain form, with times that do not decrease; the OS has them then."""
        if not lines:
            return
        member = _member("".join(f"{line}\n" for line in lines))
        try:
            with self._path.open("ab") as file:
                file.write(member)
        except OSError:
            os.truncate(self._path, self._nbytes)  # an incomplete member would hide all that follow
            raise
        self._nbytes += len(member)
        self.records += len(lines)
        self.last_at = time_of(lines[-1])

    def append_restamped(
        self, lines: Sequence[str], node: NodeId, ours: Callable[[float], float]
    ) -> list[str]:
        """Records of ``node`` on its clock; ``ours`` gives a time on the server's.

        Returns the lines as written. ProtocolViolation if they are not ``node``'s.
        """
        stamped, at = [], self.last_at
        for line in lines:
            _check(line, node)
            at = max(at, ours(time_of(line)))  # a new clock offset may give an earlier time
            stamped.append(restamped(line, at))
        self.append(stamped)
        return stamped

    # ---- the file ----------------------------------------------------------------------------

    def _begin(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        header = _member(json.dumps({"schema": SCHEMA}) + "\n")
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(header)
        temporary.rename(self._path)  # a file without a header is no trace
        self._nbytes = len(header)

    def _take_stock(self) -> None:
        last = b""
        for end, text in _whole_members(self._path):
            if self._nbytes:  # the first holds the header alone
                self.records += text.count(b"\n")
                last = text
            self._nbytes = end
        if self._nbytes:
            read_header(self._path)  # may refuse it
        if last:
            self.last_at = time_of(last.splitlines()[-1].decode())
        torn = self._path.stat().st_size - self._nbytes
        if torn:
            _log.warning(
                "%s: the last %d bytes are an incomplete record and are cut off", self._path, torn
            )
            os.truncate(self._path, self._nbytes)


def _member(text: str) -> bytes:
    return gzip.compress(text.encode(), COMPRESSION, mtime=0)


def _whole_members(path: Path) -> Iterator[tuple[int, bytes]]:
    """Where each gzip member ends, and its content; up to the first that is incomplete."""
    with path.open("rb") as file:
        end, rest = 0, b""
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
                rest = member.unused_data
            yield end, b"".join(text)


# ---- lines: [12.5,"node",... -----------------------------------------------------------------


def restamped(line: str, at: float) -> str:
    """The same record at another time; the rest of the line is not parsed."""
    return f"[{encode(at)}{line[line.index(',') :]}"


def _check(line: str, node: NodeId) -> None:
    """Checks what keeps a device's file readable and free of other nodes' records."""
    time, comma, rest = line.partition(",")
    try:
        good = time.startswith("[") and math.isfinite(float(time[1:]))
    except ValueError:
        good = False
    if not (good and comma and rest.startswith(f"{encode(node)},") and rest.endswith("]")):
        raise ProtocolViolation(f"{node} sent a record that is not its own: {line[:80]!r}")
    if "\n" in line:
        raise ProtocolViolation(f"{node} sent a record of several lines: {line[:80]!r}")
    try:
        _, _, (event, *_), *effects = json.loads(line)
        good = event in _EVENTS and all(effect[0] in _EFFECTS for effect in effects)
    except (ValueError, TypeError, LookupError, RecursionError):
        good = False
    if not good:
        raise ProtocolViolation(f"{node} sent a record that cannot be read: {line[:80]!r}")
