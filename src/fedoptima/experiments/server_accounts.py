"""The accounts of a server's run: its course, always, and what onlookers see, if there are any.

They are part of its checkpoints, so that a resume takes no longer for a long run than for a short
one. Of a checkpoint without them (an older one, or nobody watched), the trace is read instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fedoptima.analysis.accounts import Accounts, summarise
from fedoptima.analysis.curve import CourseAccount, with_device_samples
from fedoptima.analysis.live_accounts import LiveAccounts
from fedoptima.analysis.saved_accounts import Unfit, restore, save
from fedoptima.analysis.summary import Summary
from fedoptima.core.errors import ConfigError
from fedoptima.core.text import printable
from fedoptima.experiments.record_queue import RecordQueue
from fedoptima.runtime.server.checkpoint import SavedAccounts
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.trace.writer import read_records

LOG = logging.getLogger("fedoptima.server")

T = TypeVar("T")


class View:
    """Calls observers until one fails: a device may record anything, and must not end the run."""

    def __init__(self) -> None:
        self._failed = False

    def guarded(self, work: Callable[[T], None]) -> Callable[[T], None]:
        def look(what: T) -> None:
            if self._failed:
                return
            try:
                work(what)
            except Exception:
                self._failed = True
                LOG.exception("the view of the run failed and is closed; the run itself continues")

        return look


class ServerAccounts:
    def __init__(self, trace: Path) -> None:
        self.course = CourseAccount()  # by the server's own records
        self.live = LiveAccounts()
        self.queue = RecordQueue(self.course.observe)  # for who else is to see them, too
        self._trace = trace
        self._watched = False

    def restore(self, saved: Mapping[str, object]) -> None:
        """``saved``: what a checkpoint has of them."""
        try:
            restore({"course": self.course}, saved.get("course"))
        except Unfit:
            try:
                for _, record in read_records(self._trace):
                    self.course.observe(record)
            except ConfigError as error:
                LOG.warning("%s; the curve is without what follows the damage", error)

    def watch(self, saved: Mapping[str, object] | None) -> None:
        """Somebody watches from now on. ``saved``: of a run that is resumed."""
        if saved is not None:
            try:
                self.live.restore(saved.get("live"))
            except Unfit:
                self.live.catch_up(read_trace(self._trace))
        self._watched = True  # not earlier: what is not whole must not get into a checkpoint

    def save(self) -> SavedAccounts:
        """For a checkpoint."""
        self.queue.work_off()
        course = save({"course": self.course})
        live = self.live.save() if self._watched else dict
        return lambda: {"course": course, "live": live()}

    def summary(self, *, missing: int = 0) -> Summary:
        """At the end, from all records. Damage to a file must not fail a finished run.

        ``missing``: how many records the disk did not take; the curve is whole all the same.
        """
        try:
            found = summarise(self._trace)
            if missing or self._knows_more_than(found):
                return self._with_curve(found, missing, read_trace(self._trace))
            return found
        except Exception as error:
            LOG.error("devices' own records are left out of the summary: %s", printable(str(error)))
        accounts, damaged = Accounts(), False
        try:
            for _, record in read_records(self._trace):
                accounts.observe(record)
        except Exception as error:
            LOG.error("the summary ends where the trace is damaged: %s", printable(str(error)))
            damaged = True
        found = accounts.summary()
        if missing or damaged or self._knows_more_than(found):
            return self._with_curve(found, missing)
        return found

    def _knows_more_than(self, found: Summary) -> bool:
        """Of the curve. The trace may have gaps, also of processes before this one."""
        own, read = (
            [(point.seconds, point.server_samples) for point in points]
            for points in (self.course.points, found.curve)
        )
        return len(own) >= len(read) and own != read

    def _with_curve(self, found: Summary, missing: int, records: Iterable[Record] = ()) -> Summary:
        """``records``: all nodes', for the devices' samples, which the server's own have not."""
        if missing:
            LOG.warning(
                "%d records could not be written: the result's figures leave out what was in them, "
                "but for its curve",
                missing,
            )
        curve = with_device_samples(self.course.points, self.course.began, records)
        return replace(found, seconds=self.course.seconds, curve=tuple(curve))
