"""The processes of a script: the server with its checkpoints, the devices, their connections."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import fedoptima.core.serializable_types  # noqa: F401  (makes every core class known by name)
from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Evaluate, Run
from fedoptima.core.messages import Message
from fedoptima.core.method import ServerTraining
from fedoptima.core.serialization import Plain, freeze, thaw
from fedoptima.core.server import ServerCore
from fedoptima.core.settings import ServerSettings
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.fuzzing.script import DeviceSpec, Kind, Script
from fedoptima.testing.books import Books
from fedoptima.testing.toy import BATCH, ToyDevice, ToyServer

Due = Callable[[], None]
_REMEMBERED = 8  # messages of a connection that may come again
_CONNECTIONS = 3  # of a device that are remembered


class Connection:
    """As both sides see it, who may disagree for a while."""

    def __init__(self, device: NodeId, number: int, *, server: int, process: int) -> None:
        """``server`` and ``process``: which process of the server's, and of the device's."""
        self.device = device
        self.number = number
        self.server_process = server
        self.device_process = process
        self.dead_up = self.dead_down = False
        self.held_up: list[Due] | None = None  # what waits while nothing gets through
        self.held_down: list[Due] | None = None
        self.last: dict[tuple[bool, bool], float] = {}  # arrival, by direction and class
        self.said: deque[tuple[bool, Message]] = deque(maxlen=_REMEMBERED)  # upward or not

    def dead(self, *, upward: bool) -> bool:
        return self.dead_up if upward else self.dead_down


class DeviceProcess:
    """A device and what outlives its process."""

    def __init__(self, spec: DeviceSpec, number: int) -> None:
        self.spec = spec
        self.name = spec.name
        self.engine = ToyDevice(float(number), batch=min(BATCH, spec.samples))
        self.process = 0  # counts them: what was due for an earlier one is void
        self.alive = False
        self.hung = False
        self.backlog: list[Due] = []  # what has come while it hung
        self.connection: Connection | None = None
        self.unreachable_until = 0.0
        self.last_session = 0
        self.fails = 0.0  # its next training job fails, and it is restarted after so many seconds
        self.sends_nonsense = 0.0
        self.restarts_after = 0.0
        self.expect_drop = False
        self.loses_welcome = False
        self.connections: deque[Connection] = deque(maxlen=_CONNECTIONS)
        self.hears_echo = False  # of an earlier connection, when it has the next one
        self.hit: dict[Kind, float] = {}  # what went wrong since it last trained, and when
        # On its disk, and in the number of its records on the server.
        self.run = 0
        self.saved_step = 0
        self._incarnations: dict[int, int] = {}  # the next one, by run
        self.core = self._core(0)
        # Samples since its last model, as its engine counts them.
        self.trained = self.forwarded = 0
        self.exported: tuple[PayloadId, int, int] | None = None  # the last update
        self.last_step = (-1, 0)  # the last step and part of it, in this process

    def _core(self, step: int) -> DeviceCore:
        incarnation = self._incarnations.get(self.run, 0)
        self._incarnations[self.run] = incarnation + 1
        return DeviceCore(
            samples=self.spec.samples,
            flops_per_second=self.spec.speed * 1e9,
            bytes_per_second=self.spec.bytes_per_second,
            incarnation=incarnation,
            step=step,
        )

    def start(self) -> None:
        """A new process."""
        self.alive, self.hung, self.last_session = True, False, 0
        self._begin()

    def begin(self, run: int) -> None:
        """The server began another run: this device starts over, too."""
        self.run, self.saved_step = run, 0
        self._begin()

    def _begin(self) -> None:
        self.process += 1
        self.backlog.clear()
        self.engine.reset()
        self.core = self._core(self.saved_step)
        self.trained, self.forwarded, self.last_step = 0, 0, (-1, 0)

    def end(self) -> None:
        self.process += 1
        self.alive = self.hung = False
        self.connection = None
        self.backlog.clear()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What `runtime/server/checkpoint.py` keeps, and the books of the laws as they were."""

    written: float  # when it is on disk
    core: Plain
    payloads: Mapping[PayloadId, object]
    running: Run | None
    timers: Mapping[str, float]
    evaluations: tuple[Evaluate, ...]
    sessions: Mapping[NodeId, int]
    engine: Mapping[str, object]
    incarnation: int
    books: Books


def new_core(script: Script) -> ServerCore:
    """A server at the beginning of its run."""
    settings = ServerSettings(
        script.stop,
        devices=script.gather,
        patience=script.patience,
        batch_size=BATCH,
        iterations=script.iterations,
    )
    return ServerCore(script.make_method(), settings)


class ServerProcess:
    def __init__(self, script: Script) -> None:
        self._script = script
        self.process = 0
        self.run = -1
        self.up = True
        self.disk_full_until = 0.0
        self.checkpoints: list[Checkpoint] = []
        killed = (fault.at for fault in script.faults if fault.kind in (Kind.CRASH, Kind.DAMAGED))
        self._last_needed = max(killed, default=-1.0)  # no later checkpoint is ever read
        self.fails_with: dict[NodeId, float] = {}  # a job on its data; restarted after seconds
        self.begin()

    def begin(self) -> None:
        """A run from its beginning: there is nothing to resume."""
        method = self._script.make_method()
        self.core = new_core(self._script)
        self.engine = ToyServer(per_device=method.training is ServerTraining.PER_DEVICE)
        self.books = Books(method)
        self.checkpoints.clear()
        self.run += 1
        self.incarnation = 0
        self.given: dict[NodeId, int] = {}  # the number of each device's last session
        self._forget()

    def _forget(self) -> None:
        self.job: Run | None = None
        self.timers: dict[str, int] = {}
        self.evaluations: dict[int, Evaluate] = {}
        self.sessions: dict[NodeId, Connection] = {}
        self._events = 0

    def checkpoint_due(self) -> bool:
        """Between an event and its effects, while the engine is idle."""
        self._events += 1
        if self._events < self._script.checkpoint_every or self.job is not None:
            return False
        return self.core.planned

    def save(self, now: float, ordered: Run | None, asked: list[Evaluate]) -> None:
        self._events = 0
        if now < self.disk_full_until or now > self._last_needed:
            return
        payloads: dict[PayloadId, object] = {}
        checkpoint = Checkpoint(
            written=now + self._script.checkpoint_takes,
            core=freeze(self.core, payloads),
            payloads=payloads,
            running=ordered,
            timers=dict(self.core.timers),
            evaluations=(*self.evaluations.values(), *asked),
            sessions=dict(self.given),
            engine=self.engine.save(),
            incarnation=self.incarnation,
            books=self.books.copy(),
        )
        self.checkpoints = [*self.checkpoints[-2:], checkpoint]

    def end(self) -> None:
        self.process += 1
        self.up = False

    def restore(self, died: float, *, damaged: bool) -> Checkpoint | None:
        """From the newest that is whole; None if there is none: then the run begins again."""
        self.up = True
        self.process += 1
        self._forget()
        usable = [kept for kept in self.checkpoints if kept.written <= died]
        if damaged and usable:
            usable.pop()
        if not usable:
            self.begin()
            return None
        found = usable[-1]
        self.checkpoints = usable
        stored = json.loads(json.dumps(found.core))
        self.core = cast(ServerCore, thaw(stored, dict(found.payloads)))
        self.engine.restore(found.engine)
        self.books = found.books.copy()
        self.incarnation = found.incarnation + 1
        self.given = dict(found.sessions)
        return found
