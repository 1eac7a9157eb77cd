"""All accounts of a run together: the one piece of code that says what a trace means.

The same for every method and mode, live and from a file: what it knows, it has from the records.
Memory is bounded by devices and evaluations, never by the number of records.
"""

from __future__ import annotations

from pathlib import Path

from fedoptima.analysis.balance import BalanceAccount
from fedoptima.analysis.curve import CourseAccount
from fedoptima.analysis.idle_time import UsageAccount
from fedoptima.analysis.memory import MemoryAccount
from fedoptima.analysis.problems import ProblemAccount
from fedoptima.analysis.saved_accounts import Saved, restore, save
from fedoptima.analysis.server_state import ServerState
from fedoptima.analysis.staleness import StalenessAccount
from fedoptima.analysis.summary import Summary
from fedoptima.analysis.traffic import TrafficAccount
from fedoptima.analysis.work import WorkAccount
from fedoptima.core.types import SERVER
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record


class Accounts:
    """Feed it every record, in order; ask it at any time."""

    def __init__(self) -> None:
        self.course = CourseAccount()
        self.usage = UsageAccount()
        self._balance = BalanceAccount()
        self.server_state = ServerState()
        self._traffic = TrafficAccount()
        self._memory = MemoryAccount(self.server_state)
        self._staleness = StalenessAccount(self.server_state)
        self._work = WorkAccount(self._balance)
        self._problems = ProblemAccount()

    def observe(self, record: Record) -> None:
        self.course.observe(record)
        self.usage.observe(record)
        self._balance.observe(record)
        if record.node == SERVER:  # most records are devices', and the rest is about the server
            self.server_state.observe(record)  # the two after the next read it
            self._traffic.observe(record)
            self._memory.observe(record)
            self._staleness.observe(record)
            self._work.observe(record)
            self._problems.observe(record)

    def save(self) -> Saved:
        """For a checkpoint."""
        return save(vars(self))

    def restore(self, saved: object) -> None:
        """Raises `Unfit` if it was saved by another version."""
        restore(vars(self), saved)

    def summary(self) -> Summary:
        """As of the last record."""
        return Summary(
            seconds=self.course.seconds,
            epochs=self.server_state.epochs,
            trained_epochs=self.server_state.trained_epochs(self.course.processed_samples),
            refused_samples=self.server_state.refused_samples,
            versions=self.server_state.version,
            device_samples=self.course.device_samples,
            forwarded_samples=self.course.forwarded_samples,
            server_samples=self.course.server_samples,
            curve=tuple(self.course.points),
            usage=self.usage.usage(),
            traffic=self._traffic.traffic(),
            memory=self._memory.memory(),
            staleness=self._staleness.staleness(),
            balance=self._balance.balance(),
            work=self._work.work(),
            reused_samples=self.course.reused_samples,
            problems=tuple(self._problems.problems),
        )


def summarise(path: Path) -> Summary:
    """What the trace in a file says, finished or still being written."""
    accounts = Accounts()
    for record in read_trace(path):
        accounts.observe(record)
    return accounts.summary()
