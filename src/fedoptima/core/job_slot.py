"""The one place a core keeps its Compute Engine's work: at most one job at a time, numbered."""

from __future__ import annotations

from fedoptima.core.effects import Run
from fedoptima.core.errors import InvariantBroken
from fedoptima.core.jobs import Job


class JobSlot:
    def __init__(self) -> None:
        self._ticket = 0
        self._running: int | None = None

    @property
    def free(self) -> bool:
        return self._running is None

    def run(self, job: Job) -> Run:
        if self._running is not None:
            raise InvariantBroken(f"{job} while job {self._running} is running")
        self._ticket += 1
        self._running = self._ticket
        return Run(self._ticket, job)

    def done(self, ticket: int) -> None:
        if ticket != self._running:
            raise InvariantBroken(f"job {ticket} is done, but {self._running} was running")
        self._running = None
