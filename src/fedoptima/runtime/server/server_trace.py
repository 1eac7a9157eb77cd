"""A server's trace, written by a thread of its own: no disk, slow or full, holds up the training.

What the disk does not take is left out. When it does again, at the next checkpoint, a `Gap` with
the core of that moment is written in its place, from which a replay goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from fedoptima.core.effects import Run
from fedoptima.core.events import Gap
from fedoptima.core.types import SERVER
from fedoptima.runtime.disk import Disk
from fedoptima.trace.gap import GapCount
from fedoptima.trace.line import encode
from fedoptima.trace.record import Record
from fedoptima.trace.writer import READABLE_AFTER, Digest, Mark, TraceFile, TraceWriter

_WHAT = "the trace"


class ServerTrace:
    def __init__(
        self,
        writer: TraceWriter,
        disk: Disk,
        clock: Callable[[], float],
        gap: Gap | None = None,
    ) -> None:
        """Takes over from ``writer``. ``gap``: what was missing at its mark already."""
        assert writer.file is not None
        self.digest: Digest = writer.digest
        self._file: TraceFile = writer.file
        self._disk = disk
        self._clock = clock
        self._gap = None if gap is None else GapCount(gap)  # the thread's, as the file is
        self._missing = 0  # records in gaps that were closed
        self._lines: list[str] = []
        self._closed = False
        self._flushed = time.monotonic()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trace")

    @property
    def missing(self) -> int:
        """Records of this process, and of a gap that was open, that are not in the file."""
        return self._missing + (self._gap.records if self._gap else 0)

    def write(self, record: Record) -> None:
        if not self._closed:
            line = record.to_line()
            self.digest.add(line)
            self._lines.append(line)

    def keep_readable(self) -> None:
        """Have written what has waited for a second; to be called repeatedly."""
        now = time.monotonic()
        if self._lines and now - self._flushed >= READABLE_AFTER:
            self._flushed = now
            self._thread.submit(self._append, self._taken())

    def mark(self, running: Run | None = None, core: object = None) -> Future[Mark]:
        """A point to resume from: of now, on disk when the result is there. OSError: it is not.

        ``core``: its plain form as it is now, with which a gap can be closed.
        """
        lines, records, digest = self._taken(), self.digest.records, self.digest.hexdigest()
        now = self._clock()

        def reach() -> Mark:
            self._append(lines)
            self._close_gap(now, running, core)
            gap = self._gap.gap() if self._gap else None
            return Mark(self._file.nbytes, records, digest, gap)

        return self._thread.submit(reach)

    async def close(self) -> None:
        """Returns when everything is written that can be. What comes now is not written."""
        self._closed = True
        await asyncio.gather(asyncio.wrap_future(self.mark()), return_exceptions=True)
        self._thread.shutdown()

    def finish(self) -> Mark:
        """After that: the end of the trace. OSError: there is no room to close a gap; may be called
        again."""
        if self._gap is not None:
            before = self._file.nbytes
            try:
                self._write_gap(self._clock(), None, None)
                self._file.sync()
            except OSError:
                self._file.nbytes = before
                self._file.cut_back()
                raise
            self._missing, self._gap = self.missing, None
        with suppress(OSError):
            self._file.close()
        return Mark(self._file.nbytes, self.digest.records, self.digest.hexdigest())

    def _taken(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    # ---- on the thread -----------------------------------------------------------------------

    def _append(self, lines: Sequence[str]) -> None:
        if not lines:
            return
        if self._gap is None:
            try:
                self._file.append(lines)
                return
            except OSError as error:
                self._gap = GapCount()
                self._disk.failed(_WHAT, error)
        self._gap.add(lines)

    def _write_gap(self, now: float, running: Run | None, core: object) -> None:
        assert self._gap is not None
        text = "" if core is None else encode(core)
        gap = Record(now, SERVER, self._gap.gap(running, text), [])
        self._file.append([gap.to_line()])

    def _close_gap(self, now: float, running: Run | None, core: object) -> None:
        """And sync; raises if that fails."""
        before = self._file.nbytes
        try:
            if self._gap is not None:
                self._write_gap(now, running, core)
            self._file.sync()
        except OSError as error:
            self._disk.failed(_WHAT, error)
            if self._gap is None:
                raise
            self._file.nbytes = before
            self._file.cut_back()
            return
        self._missing = self.missing
        self._gap = None
        self._disk.worked(_WHAT)
