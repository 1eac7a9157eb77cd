"""All that is shown of one run, from one pass over its trace.

Figures and findings are made from this and nothing else. Its numbers are those of `Accounts`; what
it adds are facts that a summary leaves out: who joined, what was planned, how the run ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.summary import Summary
from fedoptima.analysis.timeline import Timeline, TimelineAccount
from fedoptima.core.effects import DOUBTS, Effect, Halt, Note
from fedoptima.core.events import Extended, JobDone, Received
from fedoptima.core.jobs import PlanRun
from fedoptima.core.messages import Join
from fedoptima.core.plan import Plan, recorded_plan
from fedoptima.core.text import short_name
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.description import RunDescription
from fedoptima.trace.record import Record

_MOST_DOUBTS = 20  # listed one by one
_PROGRESS_EVERY = 5000  # records


@dataclass(frozen=True)
class RunView:
    label: str  # unique among the runs of a report
    description: RunDescription
    summary: Summary
    timeline: Timeline
    joins: Mapping[NodeId, Join]  # how each device introduced itself last
    plan: Plan | None  # None: nothing is planned yet
    halt: Halt | None  # None: the run has not ended, or was killed
    records: int
    doubts: tuple[Note, ...] = ()  # what a device said of itself and was not used as it is

    @property
    def method(self) -> str:
        return short_name(self.description.method)

    @property
    def devices(self) -> list[NodeId]:
        return [node for node in self.summary.usage if node != SERVER]


def view_of(
    label: str,
    description: RunDescription,
    records: Iterable[Record],
    progress: Callable[[int], None] = lambda _: None,
) -> RunView:
    """``progress`` is called now and then with the number of records read so far."""
    accounts, facts_seen = Accounts(), _Seen()
    timeline = TimelineAccount(accounts.usage, recent=False)
    count = 0
    for count, record in enumerate(records, start=1):
        accounts.observe(record)
        timeline.observe(record)
        if record.node == SERVER:
            facts_seen.observe(record)
        if count % _PROGRESS_EVERY == 0:
            progress(count)
    return RunView(
        label=label,
        description=description,
        summary=accounts.summary(),
        timeline=timeline.timeline(),
        joins=dict(sorted(facts_seen.joins.items())),
        plan=facts_seen.plan,
        halt=facts_seen.halt,
        records=count,
        doubts=tuple(facts_seen.doubts.values()),
    )


class _Seen:
    """Facts from the server's records."""

    def __init__(self) -> None:
        self.joins: dict[NodeId, Join] = {}
        self.doubts: dict[tuple[str, NodeId], Note] = {}
        self.halt: Halt | None = None
        self.plan: Plan | None = None

    def observe(self, record: Record) -> None:
        match record.event:
            case Received(device, _, Join() as join):
                self.joins[device] = join
            case JobDone(_, PlanRun(), text=text):
                self.plan = recorded_plan(text)
            case Extended():
                self.halt = None
        for effect in record.effects:
            self._effect(effect)

    def _effect(self, effect: Effect) -> None:
        if isinstance(effect, Halt):
            self.halt = self.halt or effect
        elif isinstance(effect, Note) and effect.kind in DOUBTS and len(self.doubts) < _MOST_DOUBTS:
            self.doubts.setdefault((effect.kind, effect.about), effect)
