"""A simulated fleet with toy engines, from a plain description, under constant watch.

After every event every machine's invariants are checked, and so are the laws that can be read off
the events themselves, without asking the machines: the cap, the sessions, one answer per hand-in,
no update merged twice, nobody dropped for breaking the protocol.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Halt, Note, Run, Send
from fedoptima.core.events import DriverEvent, Received
from fedoptima.core.jobs import Merge, ReusedStep, ServerStep
from fedoptima.core.messages import TurnOn
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.serialization import freeze, thaw
from fedoptima.core.server import ServerCore
from fedoptima.core.settings import ServerSettings
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId, PayloadId
from fedoptima.sim.driver import Simulation
from fedoptima.sim.executor import Inline
from fedoptima.sim.faults import Change, Churn
from fedoptima.sim.network import Link
from fedoptima.sim.state import SimDevice, SimState
from fedoptima.testing.books import Books
from fedoptima.testing.toy import BATCH, ToyCosts, ToyDevice, ToyServer
from fedoptima.trace.record import Record
from fedoptima.trace.writer import TraceWriter

ENDLESS = 30_000  # events: no described run needs half as many


@dataclass(frozen=True)
class Device:
    speed: float = 1.0
    bytes_per_second: float = 4000.0
    latency: float = 0.0
    samples: int = 8
    joins_at: float = 0.0
    error: Exception | None = None  # raised by its training from step `fails_at` on
    fails_at: int = 0
    hands_in_nan: bool = False


@dataclass(frozen=True)
class Description:
    method: Method
    devices: Sequence[Device] = (Device(), Device())
    stop: StopRule = field(default_factory=lambda: StopRule(rounds=3))
    changes: Sequence[Change] = ()
    churn: Churn | None = None
    server_speed: float = 4.0
    iterations: int | None = 2
    evaluate_every: float = 1.0
    gather: int | None = None  # devices to wait for; None: those that are there from the start
    gather_patience: float | None = None
    drop_diverged: bool = False
    accuracy_rises: bool = True
    evaluation_diverges_at: int | None = None
    merge_error: Exception | None = None
    dry: bool = False

    @property
    def cap(self) -> int | None:
        """What the watch holds the method to."""
        return self.method.flow().cap

    def name(self, number: int) -> NodeId:
        return NodeId(f"d{number}")


class World:
    def __init__(self, description: Description, trace: TraceWriter | None = None) -> None:
        self.description = description
        self.records: list[Record] = []
        self.trace = trace or TraceWriter(None, {})
        self.watch = Watch(description)
        devices = {description.name(i): d for i, d in enumerate(description.devices)}
        early = sum(device.joins_at == 0 for device in devices.values())
        settings = ServerSettings(
            description.stop,
            devices=description.gather or max(1, early),
            patience=description.gather_patience,
            batch_size=BATCH,
            iterations=description.iterations,
            evaluate_every=description.evaluate_every,
            drop_diverged=description.drop_diverged,
        )
        self.engine = ToyServer(
            per_device=description.method.training is ServerTraining.PER_DEVICE,
            dry=description.dry,
            rises=description.accuracy_rises,
            diverges_at=description.evaluation_diverges_at,
            error=description.merge_error,
        )
        self.simulation = Simulation(
            ServerCore(description.method, settings),
            {name: _sim_device(device) for name, device in devices.items()},
            executor=Inline(
                self.engine,
                {name: _engine(i, device) for i, (name, device) in enumerate(devices.items())},
            ),
            costs=ToyCosts(
                {SERVER: description.server_speed}
                | {name: device.speed for name, device in devices.items()}
            ),
            changes=description.changes,
            churn=description.churn,
            late={name: device.joins_at for name, device in devices.items()},
            observers=(self._observe,),
        )

    @property
    def server(self) -> ServerCore:
        return self.simulation.server.machine

    @property
    def digest(self) -> str:
        return self.trace.digest.hexdigest()

    def run(
        self,
        *,
        swap_at: Collection[int] = (),
        after_step: Mapping[int, Callable[[World], None]] | None = None,
        limit: int = ENDLESS,
    ) -> Halt:
        """To the end; at the given steps everything is saved as JSON and built anew from it."""
        steps = 0

        def pause() -> bool:
            nonlocal steps
            steps += 1
            assert steps < limit, f"no end after {limit} steps, at {self.simulation.now} s"
            if steps in swap_at:
                self.swap()
            if after_step and steps in after_step:
                after_step[steps](self)
            return False

        outcome = self.simulation.run(pause)
        assert outcome is not None
        return outcome

    def run_until(self, time: float) -> None:
        self.simulation.run(lambda: self.simulation.now >= time)

    def swap(self) -> None:
        """Every machine and all that surrounds it, through JSON and back."""
        simulation = self.simulation
        payloads: dict[PayloadId, object] = {}
        state = json.loads(json.dumps(freeze(simulation.state, payloads)))
        simulation.state = cast(SimState, thaw(state, payloads))

    def _observe(self, record: Record) -> None:
        self.records.append(record)
        self.trace.write(record)
        self.server.check()
        for device in self.simulation.devices.values():
            device.machine.check()
        self.watch.see(record, self)

    # ---- what the stories ask ----------------------------------------------------------------

    def last_told(self, node: NodeId) -> float:
        """When the node was last told something."""
        return next((r.at for r in reversed(self.records) if r.node == node), 0.0)

    def jobs(self, node: NodeId, kind: type) -> list[Run]:
        effects = (e for r in self.records if r.node == node for e in r.effects)
        return [e for e in effects if isinstance(e, Run) and isinstance(e.job, kind)]

    def sent(self, kind: type, to: NodeId | None = None) -> list[Send]:
        effects = (e for record in self.records for e in record.effects)
        sends = (e for e in effects if isinstance(e, Send) and isinstance(e.message, kind))
        return [e for e in sends if to is None or e.to == to]

    def first_seen(self, device: NodeId, after: float = 0.0) -> float:
        """When the device was first told something, at or after the given time."""
        return next(r.at for r in self.records if r.node == device and r.at >= after)

    def notes(self, kind: str) -> list[Note]:
        effects = (e for record in self.records for e in record.effects)
        return [e for e in effects if isinstance(e, Note) and e.kind == kind]

    def grants(self) -> Counter[NodeId]:
        return Counter(send.to for send in self.sent(TurnOn))

    def steps_served(self) -> Counter[NodeId]:
        jobs = (run.job for run in self.jobs(SERVER, ServerStep))
        return Counter(
            job.origin
            for job in jobs
            if isinstance(job, ServerStep) and not isinstance(job, ReusedStep)
        )

    def merged(self) -> Counter[NodeId]:
        merges = (run.job for run in self.jobs(SERVER, Merge))
        return Counter(p.device for m in merges if isinstance(m, Merge) for p in m.parts)


def _engine(number: int, device: Device) -> ToyDevice:
    return ToyDevice(
        float(number),
        error=device.error,
        fails_at=device.fails_at,
        hands_in_nan=device.hands_in_nan,
        batch=min(BATCH, device.samples),
    )


def _sim_device(device: Device) -> SimDevice:
    core = DeviceCore(
        samples=device.samples,
        flops_per_second=device.speed * 1e9,
        bytes_per_second=device.bytes_per_second,
    )
    return SimDevice(
        core,
        Link(device.bytes_per_second, device.latency),
        Link(device.bytes_per_second, device.latency),
    )


class Watch:
    """The books of the server's laws, and what only the driver knows: who is connected."""

    def __init__(self, description: Description) -> None:
        self._books = Books(description.method)
        self._drops_expected = False

    @property
    def peak(self) -> int:
        return self._books.peak

    def expect_drops(self) -> None:
        """This story is about a peer that breaks the protocol."""
        self._drops_expected = True

    def see(self, record: Record, world: World) -> None:
        for effect in record.effects:
            dropped = isinstance(effect, Note) and effect.kind == "peer dropped"
            assert not dropped or self._drops_expected, f"the protocol was broken: {record}"
            if isinstance(effect, Send) and record.node == SERVER:
                there = world.simulation.devices[effect.to]
                assert there.connected, f"sent to {effect.to}, which is away: {record}"
                assert there.session == effect.session, f"sent to a dead session: {record}"
        if isinstance(record.event, Received):
            device = record.event.sender if record.node == SERVER else record.node
            current = world.simulation.devices[device].session
            assert record.event.session == current, f"arrived from a dead session: {record}"
        if record.node == SERVER and not isinstance(record.event, DriverEvent):
            self._books.see(record.at, record.event, record.effects, world.server)
