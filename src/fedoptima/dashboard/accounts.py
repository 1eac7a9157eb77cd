"""All that is known of one run at this moment; its figures are those of `Accounts`."""

from __future__ import annotations

from collections import deque

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.curve import Throughput, throughput
from fedoptima.analysis.fleet import FleetAccount
from fedoptima.analysis.timeline import TimelineAccount
from fedoptima.core.effects import Halt
from fedoptima.core.events import Extended, JobDone
from fedoptima.core.jobs import PlanRun
from fedoptima.core.plan import Plan, recorded_plan
from fedoptima.core.types import SERVER
from fedoptima.dashboard.event_log import EventLog
from fedoptima.trace.record import Record

_RECENT = 10  # looks at the run, a second or more apart


class RunAccounts:
    def __init__(self) -> None:
        self.accounts = Accounts()
        self.timeline = TimelineAccount(self.accounts.usage)
        self.fleet = FleetAccount()
        self.events = EventLog()
        self.halt: Halt | None = None
        self.plan: Plan | None = None
        self.records = 0
        self.newest = 0.0
        self._looks: deque[tuple[float, int, int, int]] = deque(maxlen=_RECENT)

    def see(self, record: Record) -> None:
        """At once, in whatever order the nodes' records come in."""
        self.records += 1
        self.newest = max(self.newest, record.at)
        self.fleet.observe(record)
        self.events.observe(record)
        if record.node == SERVER:
            self._see_server(record)

    def count(self, record: Record) -> None:
        """In the order of time, when every node's records have come."""
        self.accounts.observe(record)
        self.timeline.observe(record)

    def _see_server(self, record: Record) -> None:
        match record.event:
            case JobDone(_, PlanRun(), text=plan):
                self.plan = recorded_plan(plan)
            case Extended():
                self.halt = None
        for effect in record.effects:
            if isinstance(effect, Halt):
                self.halt = self.halt or effect

    def recent_throughput(self) -> Throughput:
        """Since about ten calls ago, on the run's clock; when it is over, of the whole run."""
        course = self.accounts.course
        look = (
            *(course.seconds, course.device_samples),
            *(course.server_samples, course.reused_samples),
        )
        if not self._looks or look != self._looks[-1]:
            self._looks.append(look)
        going_on = self.halt is None and len(self._looks) > 1
        before = self._looks[0] if going_on else (0.0, 0, 0, 0)
        seconds, device, server, reused = (new - old for new, old in zip(look, before, strict=True))
        return throughput(int(device), int(server), seconds, int(reused))
