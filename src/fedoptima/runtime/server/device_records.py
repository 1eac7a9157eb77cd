"""What devices record themselves, on its way to the server's disk: checked, and within a quota."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.types import NodeId
from fedoptima.runtime.disk import Disk
from fedoptima.runtime.server.allowance import Allowance
from fedoptima.trace.device_trace import DeviceMark, DeviceTrace
from fedoptima.trace.record import Record
from fedoptima.trace.run_folder import device_trace

_MB: Final = 1_000_000
_WHAT: Final = "what devices record"


@dataclass(frozen=True, slots=True)
class RecordQuota:
    """What is kept of one device's records; what goes beyond is counted and left out.

    A device sends at most 1 MiB a second, and has tens of MB at most to hand over after an absence.
    """

    bytes_per_second: float = 2 * _MB  # of text, in the long run
    burst: float = 64 * _MB  # of text, at once
    in_all: float = 256 * _MB  # on disk, compressed


class _Kept:
    """One device's records, through all its sessions."""

    def __init__(self, trace: DeviceTrace, quota: RecordQuota) -> None:
        self.trace = trace
        self.left_out = 0
        self._in_all = quota.in_all
        self._rate = Allowance(per_second=quota.bytes_per_second, burst=quota.burst)

    @property
    def taken(self) -> int:
        return self.trace.records + self.left_out

    def has_room_for(self, nbytes: int, now: float) -> bool:
        return self.trace.nbytes < self._in_all and self._rate.take(nbytes, now)


class DeviceRecords:
    def __init__(
        self,
        folder: Path,
        quota: RecordQuota,
        log: logging.Logger,
        disk: Disk,
        marks: Mapping[NodeId, DeviceMark] | None = None,
    ) -> None:
        """``marks``: how far the files had come at the checkpoint that this server resumes."""
        self._folder = folder
        self._disk = disk
        self._quota = quota
        self._log = log
        self._marks = dict(marks or {})
        self._kept: dict[NodeId, _Kept] = {}

    def of(self, device: NodeId) -> _Kept:
        if device not in self._kept:
            trace = DeviceTrace(device_trace(self._folder, device), self._marks.get(device))
            self._kept[device] = _Kept(trace, self._quota)
        return self._kept[device]

    def take_up(self, devices: Iterable[NodeId]) -> float:
        """Continue the files of those devices; returns the time of their last record."""
        return max((self.of(device).trace.last_at for device in devices), default=0.0)

    def marks(self) -> dict[NodeId, DeviceMark]:
        """How far every file has come."""
        return self._marks | {device: kept.trace.mark for device, kept in self._kept.items()}

    def taken(self, device: NodeId) -> int:
        """How many of them need not be sent again."""
        kept = self.of(device)
        self._open(kept)
        return kept.taken

    def _open(self, kept: _Kept) -> bool:
        try:
            kept.trace.open()
        except OSError as error:
            self._disk.failed(_WHAT, error)
            return False
        return True

    def take(
        self,
        device: NodeId,
        first: int,
        lines: Sequence[str],
        ours: Callable[[float], float],
        now: float,
    ) -> list[Record]:
        """Put records on disk, on the server's clock; returns those that are new there.

        ``first``: the number of the first line. ``ours``: a time on the device's clock, on ours.
        """
        kept = self.of(device)
        if not self._open(kept):  # how many there are is not known; they are sent again
            return []
        if first > kept.taken:
            raise ProtocolViolation(f"unexpected records, from number {first} on")
        fresh = lines[kept.taken - first :]
        if not kept.has_room_for(sum(map(len, fresh)), now):
            self._leave_out(device, kept, len(fresh))
            return []
        try:
            records = kept.trace.append_restamped(fresh, device, ours)
        except OSError as error:  # the device keeps them, and sends them again
            self._disk.failed(_WHAT, error)
            return []
        self._disk.worked(_WHAT)
        return records

    def _leave_out(self, device: NodeId, kept: _Kept, count: int) -> None:
        if not kept.left_out and count:
            quota = self._quota
            self._log.warning(
                "%s records more than is kept (%g MB a second, %g MB in all): the rest is left out",
                device,
                quota.bytes_per_second / _MB,
                quota.in_all / _MB,
            )
        kept.left_out += count

    def close(self) -> None:
        """At the end of the run: what was left out, by device."""
        for device, kept in self._kept.items():
            if kept.left_out:
                self._log.warning("%d records of %s were left out", kept.left_out, device)
