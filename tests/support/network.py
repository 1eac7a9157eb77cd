"""A server and its devices over loopback, each in a thread of this process.

Everything is real but the processes: sockets, frames, event loops, compute threads, files. Waits
have deadlines, so a test that goes wrong fails instead of hanging.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Condition, Event, Thread
from typing import TypeVar

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.jobs import Job
from fedoptima.core.machine import Outcome
from fedoptima.core.messages import Message
from fedoptima.core.types import PayloadId
from fedoptima.engine.determinism import deterministic
from fedoptima.experiments.join import DeviceSetup, build_workplace
from fedoptima.experiments.result import Result
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.server_run import RunHooks, ServerWatch, serve_run
from fedoptima.experiments.server_setup import prepare_server
from fedoptima.named_code import allow
from fedoptima.preprocess.job_costs import Rates
from fedoptima.runtime.address import Address
from fedoptima.runtime.device.client import Device, Pace, Workplace
from fedoptima.runtime.device.device_node import NetworkDeviceEngine
from fedoptima.runtime.device.state import StateFile
from fedoptima.runtime.security.access_lists import AccessLists
from fedoptima.runtime.security.tls import DeviceTLS, ServerTLS
from fedoptima.runtime.timeouts import Timeouts

DEADLINE = 180.0  # seconds, for what takes few on a machine that is not busy
GIVE_UP_AFTER = 60.0  # seconds: a device of a test that is over looks for its server no longer
# Processes before the server, in the tests that do not say: all of them must pass with some, too.
GATEWAYS = int(os.environ.get("FEDOPTIMA_TEST_GATEWAYS", "0"))
NAMES = ("fast", "middle", "slow")
# What comes often comes quickly. What a busy machine must not bring about takes long: a test that
# waits for it says so.
QUICK = Timeouts(
    handshake=30.0,
    ping_every=0.5,
    ping_answer=30.0,
    retry_first=0.05,
    retry_longest=0.2,
    retry_longest_after_loss=0.2,
    telemetry_every=0.1,
    farewell=5.0,
)

T = TypeVar("T")


def tiny_recipe(name: str = "fedoptima", /, **parts: object) -> Recipe:
    """A method with three devices that share a small data set; ``parts`` replace whole tables."""
    table: dict[str, object] = {
        "name": "tiny",
        "seed": 3,
        "threads": 1,
        "model": {"name": "tests.e2e.tiny:model"},
        "data": {"name": "tests.e2e.tiny:data", "partition": {"kind": "iid"}},
        "fleet": {
            "server": {"gflops": 1.0},
            "devices": [{"name": name, "gflops": 0.1} for name in NAMES],
        },
        "method": {"name": name},
        "training": {
            "batch_size": 8,
            "device": {"learning_rate": 0.05},
            "server": {"learning_rate": 0.03, "momentum": 0.8},
        },
        "split": {"at": 1},
        "stop": {"epochs": 2.0},
    }
    return validate(Recipe, {**table, **parts}, "test")


def until(condition: Callable[[], T | None], what: str, deadline: float = DEADLINE) -> T:
    """What the condition says, once it says something."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        if said := condition():
            return said
        time.sleep(0.01)
    raise AssertionError(f"not within {deadline:g} s: {what}")


class Work(Thread):
    """A thread with an outcome."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._answer: object = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._answer = self._work()
        except BaseException as error:
            self.error = error

    def answer(self, deadline: float = DEADLINE) -> object:
        self.join(deadline)
        assert not self.is_alive(), f"{self.name} does not come to its end"
        if self.error is not None:
            raise self.error
        return self._answer


class Server:
    """A server in a thread. Leaving the context stops it, if it has not come to its end."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        port: int = 0,
        tls: ServerTLS | None = None,
        access: AccessLists | None = None,
        resume: bool = False,
        timeouts: Timeouts = QUICK,
        gateways: int = GATEWAYS,
    ) -> None:
        setup = prepare_server(recipe)
        if resume:
            self.directory, _, _ = RunDirectory.open(folder)
        else:
            self.directory = RunDirectory.create(folder, setup.describe())
        self.watch: ServerWatch | None = None
        self._address: Address | None = None
        self._stop = Event()
        hooks = RunHooks(self._ready, self._observe, self._stop.is_set)
        self._work = Work(
            lambda: serve_run(
                setup,
                self.directory,
                listen=Address("127.0.0.1", port),
                tls=tls,
                access=access,
                resume=resume,
                hooks=hooks,
                timeouts=timeouts,
                gateways=gateways,
            ),
            "server",
        )

    def __enter__(self) -> Server:
        self._work.start()
        until(lambda: self._address or self._work.error, "the server listens")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._work.join(DEADLINE)

    def _ready(self, address: Address) -> None:
        self._address = address

    def _observe(self, watch: ServerWatch) -> None:
        self.watch = watch

    @property
    def address(self) -> Address:
        if self._address is None:
            self._work.answer()
        assert self._address is not None
        return self._address

    def interrupt(self) -> None:
        self._stop.set()

    def result(self) -> Result:
        result = self._work.answer()
        assert isinstance(result, Result)
        return result


class Gate:
    """A device's engine that a test can hold: jobs of some kinds wait to be let through."""

    def __init__(self) -> None:
        self.engine: NetworkDeviceEngine | None = None
        self.begun: list[Job] = []
        self.done: list[Job] = []
        self.breaks: Exception | None = None  # raised by the next job that is let through
        self._held: tuple[type[Job], ...] = ()
        self._changed = Condition()

    def around(self, engine: NetworkDeviceEngine) -> NetworkDeviceEngine:
        self.engine = engine
        return self

    def hold(self, *kinds: type[Job]) -> None:
        """Nothing of these kinds is done from now on; no kind: all go through."""
        with self._changed:
            self._held = kinds
            self._changed.notify_all()

    def waits_at(self, kind: type[Job], times: int = 1) -> None:
        until(lambda: _count(self.begun, kind) >= times, f"{kind.__name__} begins")

    def has_done(self, kind: type[Job], times: int = 1) -> None:
        until(lambda: _count(self.done, kind) >= times, f"{kind.__name__} is done")

    # ---- an engine's part --------------------------------------------------------------------

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        assert self.engine is not None
        self.begun.append(job)
        with self._changed:
            assert self._changed.wait_for(lambda: not isinstance(job, self._held), DEADLINE)
        if self.breaks is not None:
            raise self.breaks
        outcome = self.engine.execute(job, result)
        self.done.append(job)
        return outcome

    def admit(self, message: Message) -> None:
        assert self.engine is not None
        self.engine.admit(message)

    def receive(self, message: Message) -> Message:
        assert self.engine is not None
        return self.engine.receive(message)


def _count(jobs: list[Job], kind: type[Job]) -> int:
    return sum(isinstance(job, kind) for job in jobs)


def start_device(
    name: str,
    server: Address,
    folder: Path,
    *,
    tls: DeviceTLS | None = None,
    timeouts: Timeouts = QUICK,
    gate: Gate | None = None,
    give_up_after: float = GIVE_UP_AFTER,
    allowed: Sequence[str] = ("tests",),
    pace: Pace | None = None,
    rates: Rates | None = None,
    claims: float | None = None,
) -> Work:
    """A device in a thread; its answer says why it ended.

    ``claims``: FLOP/s, whatever it really has.
    """
    state = StateFile(folder / f"{name}.json")
    code = allow(allowed)
    setup = DeviceSetup(name=name, server=server, state=state, tls=tls, code=code, rates=rates)

    def build(recipe: str) -> Workplace:
        place = build_workplace(setup, recipe)
        if claims is not None:
            place = replace(place, measure_speed=lambda: claims)
        return replace(place, engine=gate.around(place.engine)) if gate else place

    async def live() -> str:
        device = Device(
            name,
            server,
            tls=tls,
            build=build,
            state=state,
            pace=pace,
            give_up_after=give_up_after,
            timeouts=timeouts,
        )
        return (await device.run()).reason

    def work() -> str:
        with deterministic(1):
            return asyncio.run(live())

    device = Work(work, name)
    device.start()
    return device
