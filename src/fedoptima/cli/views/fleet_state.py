"""A run over the network at one moment, in the figures that are shown of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedoptima.analysis.formatting import brief, counted, listed, roughly
from fedoptima.analysis.quality import quality
from fedoptima.core.text import quoted
from fedoptima.display.progress import RunProgress

if TYPE_CHECKING:
    from fedoptima.analysis.fleet import DeviceFacts
    from fedoptima.analysis.idle_time import Usage
    from fedoptima.core.types import NodeId
    from fedoptima.experiments.server_run import ServerWatch

_NAMED = 8  # devices in a sentence


@dataclass(frozen=True)
class DeviceRow:
    name: str
    state: str
    well: bool  # not away, not failed
    gflops: str  # empty until it has joined
    mbps: str  # its uplink
    version: int | None  # of the model it trains
    behind: int | None  # versions
    used: int  # by the server: batches of activations, or updates where nothing else is sent
    usage: Usage | None  # None: none of its records has come yet
    unseen: float  # seconds since it was last heard of


@dataclass(frozen=True)
class FleetState:
    course: RunProgress
    version: int
    used: int
    what_is_used: str
    server: str  # what it does
    usage: Usage
    waiting: str  # for whom, before the training begins
    devices: tuple[DeviceRow, ...]  # those with a problem first
    errors: tuple[str, ...]  # the last one of each device that had any

    @classmethod
    def of(cls, watch: ServerWatch, logged: dict[str, str]) -> FleetState:
        """``logged``: devices' errors from the log, beside what the run's records say."""
        from fedoptima.core.method import ServerTraining
        from fedoptima.core.types import SERVER

        now, core, fleet = watch.node.clock(), watch.node.machine, watch.live.fleet
        usage = watch.live.accounts.usage.usage()
        trains = watch.setup.method.training is not ServerTraining.NONE

        def row(name: NodeId, facts: DeviceFacts) -> DeviceRow:
            join, version = facts.join, facts.version
            return DeviceRow(
                name,
                _in_words(facts, now),
                facts.here,
                brief(join.flops_per_second / 1e9) if join else "",
                brief(join.bytes_per_second * 8 / 1e6) if join else "",
                version,
                None if version is None else fleet.version - version,
                facts.batches if trains else facts.merged,
                usage.get(name),
                max(0.0, now - facts.heard),
            )

        rows = (row(name, facts) for name, facts in sorted(fleet.devices.items()))
        errors: dict[str, str] = {
            name: f"{name}: {quoted(facts.error)}"
            for name, facts in fleet.devices.items()
            if facts.error
        }
        return cls(
            course=RunProgress.of(
                watch.setup.recipe,
                core.progress,
                now=now,
                began=now if fleet.began is None else fleet.began,
                quality=quality(fleet.measured),
                usage=usage,
            ),
            version=fleet.version,
            used=fleet.batches if trains else sum(f.merged for f in fleet.devices.values()),
            what_is_used="batches" if trains else "updates",
            server="waiting" if fleet.began is None else "training" if trains else "merging",
            usage=usage[SERVER],
            waiting="" if fleet.began is not None else _waiting(watch, now),
            devices=tuple(sorted(rows, key=lambda row: row.well)),
            errors=tuple((errors | logged).values()),
        )

    def line(self) -> str:
        if self.waiting:
            return self.waiting
        away = [row.name for row in self.devices if row.gflops and not row.well]
        missing = f", not here: {listed(away, _NAMED)}" if away else ""
        return self.course.line() + missing


def _in_words(facts: DeviceFacts, now: float) -> str:
    from fedoptima.analysis.fleet import DeviceState

    if facts.state is DeviceState.AWAY:
        return f"away for {roughly(max(0.0, now - facts.since))}"
    return str(facts.state.value)


def _waiting(watch: ServerWatch, now: float) -> str:
    """Who is here, and until when the others are waited for."""
    from fedoptima.core.server import GATHER

    core, wanted = watch.node.machine, watch.setup.expected.at_start
    here = sorted(core.members)
    if watch.live.fleet.planning:
        return f"dividing the model between the server and {counted(len(here), 'device')}"
    text = f"{len(here)} of {counted(wanted, 'device')} here"
    if here:
        text += f": {listed(here, _NAMED)}"
    readying = len(core.sessions) - len(here)
    if readying:
        text += f"; {readying} getting ready"
    deadline = core.timers.get(GATHER)
    if deadline is not None:
        text += f"; begins at the latest in {roughly(max(0.0, deadline - now))}"
    return text
