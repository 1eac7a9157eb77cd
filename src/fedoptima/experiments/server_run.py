"""The server of a run over the network: a new run, or one resumed from a checkpoint."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedoptima.analysis.live_accounts import LiveAccounts
from fedoptima.core.effects import Halt
from fedoptima.core.errors import run_failed
from fedoptima.core.events import DiskFailing, DiskWorks
from fedoptima.core.types import NodeId
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.graphs.network_server import RecordedServer
from fedoptima.engine.server import ServerEngine
from fedoptima.experiments.disk_sign import DiskSign
from fedoptima.experiments.entrance import Entrance, build_entrance
from fedoptima.experiments.result import Result, build_result
from fedoptima.experiments.run_directory import STOP, STOPPED, RunDirectory
from fedoptima.experiments.server_accounts import ServerAccounts, View
from fedoptima.experiments.server_metrics import ServerMetrics
from fedoptima.experiments.server_setup import ServerSetup
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.runtime.address import Address
from fedoptima.runtime.clock import RunClock
from fedoptima.runtime.compute import Compute
from fedoptima.runtime.disk import Disk
from fedoptima.runtime.native_memory import kept_small
from fedoptima.runtime.operator_log import ServerLog
from fedoptima.runtime.security.access_lists import AccessLists
from fedoptima.runtime.security.tls import ServerTLS
from fedoptima.runtime.server.checkpoint import Restored, capture, load_server_checkpoint
from fedoptima.runtime.server.checkpointer import Checkpointer
from fedoptima.runtime.server.device_records import DeviceRecords, RecordQuota
from fedoptima.runtime.server.server_node import INTERRUPTED, ServerNode
from fedoptima.runtime.server.server_trace import ServerTrace
from fedoptima.runtime.timeouts import DEFAULT, Timeouts
from fedoptima.trace.description import RunDescription
from fedoptima.trace.record import Record
from fedoptima.trace.run_folder import device_of
from fedoptima.trace.writer import Mark, TraceWriter

_MB = 1_000_000
_OBSERVER_INTERVAL = 0.2  # seconds
_ROOM_INTERVAL = 2.0  # seconds between two looks whether there is room on the disk
_MOST_WATCHED = 64  # devices whose own records are read during the run

LOG = logging.getLogger("fedoptima.server")


@dataclass(frozen=True)
class ServerWatch:
    """What an observer sees while a run is in progress."""

    setup: ServerSetup
    description: RunDescription
    node: ServerNode
    live: LiveAccounts
    address: Address


# Runs alongside the server, given its address; if it fails, the run fails with it.
BackgroundTask = Callable[[Address], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class RunHooks:
    """What the caller wants called during the run, on the run's event loop."""

    ready: Callable[[Address], None] = lambda _: None  # given the address, once devices can connect
    observe: Callable[[ServerWatch], None] | None = None  # a few times a second
    interrupted: Callable[[], bool] = lambda: False  # True: save a checkpoint and stop
    background: BackgroundTask | None = None


NO_HOOKS = RunHooks()
LOOPBACK = Address("127.0.0.1", 0)


def serve_run(
    setup: ServerSetup,
    directory: RunDirectory,
    *,
    listen: Address = LOOPBACK,
    tls: ServerTLS | None = None,
    access: AccessLists | None = None,
    resume: bool = False,
    hooks: RunHooks = NO_HOOKS,
    timeouts: Timeouts = DEFAULT,
    gateways: int = 0,
) -> Result:
    """Serve a run to its end. Raises `Interrupted` if it was stopped; it can be resumed then.

    ``gateways``: processes that take the connections; 0: this one does.
    """

    async def run() -> Result:
        async with kept_small():
            server = _ServerRun(setup, directory, resume, timeouts)
            return await server.run(listen, tls, access, hooks, gateways)

    with directory.taken(), deterministic(setup.recipe.threads, setup.recipe.training.precision):
        return asyncio.run(run())


class _ServerRun:
    def __init__(
        self, setup: ServerSetup, directory: RunDirectory, resume: bool, timeouts: Timeouts
    ) -> None:
        self._setup = setup
        self._directory = directory
        self._timeouts = timeouts
        on_gpu = setup.workload.compute.type == "cuda"
        self._engine = RecordedServer(setup.workload) if on_gpu else ServerEngine(setup.workload)
        self._accounts = ServerAccounts(directory.trace)
        self._disk = Disk(directory.path, LOG)
        self._metrics = ServerMetrics(directory.metrics, self._accounts.course, self._disk)
        restored = self._restore() if resume else None
        if restored is None:
            self._start_new(resume)
        self._node = self._build_node(restored)
        self._metrics.start()
        self._restored = restored

    # ---- start ------------------------------------------------------------------------------

    def _restore(self) -> Restored | None:
        folder, compute = self._directory.saved, self._setup.workload.compute
        restored = load_server_checkpoint(folder, self._engine, compute, self._directory.trace)
        if restored is not None:
            writer = TraceWriter.resume(self._directory.trace, restored.mark)
            self._accounts.restore(restored.accounts)
            # Devices' records are not cut back: what follows is later than any of them.
            self._records = self._device_records(restored)
            names = [NodeId(device_of(file)) for file in self._directory.device_traces()]
            self._clock = RunClock(max(restored.now, self._records.take_up(names)))
            self._trace = ServerTrace(writer, self._disk, self._clock, restored.mark.gap)
            # As progress and results count it.
            trained = self._accounts.course.seconds_at(restored.now)
            LOG.info("resuming from the checkpoint after %.1f s of training", trained)
        return restored

    def _device_records(self, restored: Restored | None) -> DeviceRecords:
        quota = RecordQuota(in_all=self._setup.recipe.deploy.max_records_mb * _MB)
        marks = restored.device_marks if restored else {}
        return DeviceRecords(self._directory.devices, quota, LOG, self._disk, marks)

    def _start_new(self, resume: bool) -> None:
        if resume:
            LOG.warning("no checkpoint was saved yet: the run starts from the beginning")
        shutil.rmtree(self._directory.devices, ignore_errors=True)
        self._clock = RunClock()
        self._records = self._device_records(None)
        writer = TraceWriter(self._directory.trace, self._directory.description.to_plain())
        self._trace = ServerTrace(writer, self._disk, self._clock)

    def _build_node(self, restored: Restored | None) -> ServerNode:
        recipe = self._setup.recipe
        self._directory.devices.mkdir(exist_ok=True)
        on_cpu = self._setup.workload.compute.type == "cpu"
        self._compute = Compute("server", threads=recipe.threads, short_here=on_cpu)
        self._checkpointer = Checkpointer(
            self._directory.checkpoints,
            self._trace,
            self._disk,
            seconds=recipe.deploy.checkpoint_seconds,
            merges=recipe.deploy.checkpoint_merges,
            kept=recipe.deploy.checkpoints_kept,
            log=LOG,
            config=self._directory.config_text,
            accounts=self._accounts.save,
            number=restored.number if restored else 0,
            version=restored.core.version if restored else 0,
        )
        node = ServerNode(
            restored.core if restored else self._setup.core(),
            self._engine,
            self._compute,
            self._clock,
            run=restored.run if restored else secrets.token_hex(8),
            incarnation=self._directory.begin_process(restored.incarnation if restored else None),
            checkpointer=self._checkpointer,
            records=self._records,
            log=LOG,
        )
        queue = self._accounts.queue  # the trace first: it must not lack what an account fails on
        queue.observers = [self._trace.write, *queue.observers, self._metrics.observe]
        node.observers += [queue.add, ServerLog(LOG).observe]
        self._sign = DiskSign(self._directory.disk_failing)
        loop = asyncio.get_running_loop()
        self._disk.say = lambda event: loop.call_soon_threadsafe(self._tell_of_disk, event)
        return node

    def _tell_of_disk(self, event: DiskFailing | DiskWorks) -> None:
        self._sign.show(event)
        self._node.note(event)

    # ---- the run -----------------------------------------------------------------------------

    async def run(
        self,
        listen: Address,
        tls: ServerTLS | None,
        access: AccessLists | None,
        hooks: RunHooks,
        gateways: int,
    ) -> Result:
        node, recipe = self._node, self._setup.recipe
        entrance = build_entrance(
            self._setup,
            node,
            self._clock,
            lambda: self._engine.expected,
            tls=tls,
            access=access or AccessLists(),
            timeouts=self._timeouts,
            gateways=gateways,
        )
        address = entrance.bind(listen)
        watch = ServerWatch(
            self._setup, self._directory.description, node, self._accounts.live, address
        )
        view = self._attach_observer(hooks, watch)
        if self._restored is not None:
            node.resume_from(self._restored, recipe.stop)
        background = None
        try:
            await entrance.open()  # not earlier: a device that comes must find the restored state
            if hooks.background:
                background = asyncio.ensure_future(hooks.background(address))
            whom = "for devices with a certificate of its CA" if tls else "without certificates"
            LOG.info("listening on %s, %s", address, whom)
            hooks.ready(address)
            halt = await self._until_the_end(hooks, view, entrance, background)
            await entrance.farewell()
        finally:
            await node.shut_down()
            self._accounts.queue.work_off()
            await entrance.close()
            self._accounts.queue.work_off()  # of the disk there may be news meanwhile
            self._compute.close()
            await self._trace.close()
            with suppress(OSError):
                self._trace.finish()
            if background is not None:
                background.cancel()
                await asyncio.gather(background, return_exceptions=True)
        return await self._finish(halt, hooks)

    def _attach_observer(self, hooks: RunHooks, watch: ServerWatch) -> Callable[[], None]:
        """Called before the first event; returns the function that calls the observer."""
        if hooks.observe is None:
            return lambda: None
        view, live, observe = View(), self._accounts.live, hooks.observe
        view.guarded(self._accounts.watch)(self._restored.accounts if self._restored else None)
        self._accounts.queue.observers.append(view.guarded(live.observe))
        self._node.device_observers.append(view.guarded(self._watch_device))

        def look(now: float) -> None:
            live.advance(now)
            observe(watch)

        return lambda: view.guarded(look)(self._clock())

    async def _until_the_end(
        self,
        hooks: RunHooks,
        look: Callable[[], None],
        entrance: Entrance,
        background: asyncio.Future[None] | None,
    ) -> Halt:
        asked = False
        while not self._node.outcome.done():
            wish = self._directory.wish()
            if wish == STOP and self._node.machine.planned:
                self._node.end(STOPPED)
            elif (wish or hooks.interrupted()) and not asked:
                asked = True
                self._node.interrupt()
            entrance.enforce_access()
            self._accounts.queue.work_off()
            look()
            self._trace.keep_readable()
            self._metrics.retry()
            self._sign.refresh()
            if background is not None and background.done():
                background.result()  # raises the error that ended it
            await asyncio.wait({self._node.outcome}, timeout=_OBSERVER_INTERVAL)
        return self._node.outcome.result()

    def _watch_device(self, records: Sequence[Record]) -> None:
        if len(self._node.sessions) <= _MOST_WATCHED:
            self._accounts.live.observe_device(records)

    # ---- the end -----------------------------------------------------------------------------

    async def _finish(self, halt: Halt, hooks: RunHooks) -> Result:
        directory = self._directory
        if halt.reason == INTERRUPTED:
            when = f"stopped at {self._clock():.1f} s of the run"
            when += self._checkpointer.say_what_is_lost(directory.saved)
            directory.write_stopped(when)
            raise Interrupted(when)
        if halt.failed:
            failure = self._node.failure
            reason = f"{halt.reason} (the trace is in {directory.trace})"
            self._disk.attempt("why it failed", lambda: directory.write_failure(reason))
            raise run_failed(reason, failure) from failure
        result = build_result(
            self._setup,
            self._engine,
            self._trace.digest,
            reason=halt.reason,
            rounds=self._node.machine.progress.rounds,
            summary=self._accounts.summary(missing=self._trace.missing),
            directory=directory.path,
        )
        await self._write(result, hooks)
        return result

    async def _write(self, result: Result, hooks: RunHooks) -> None:
        """Waits for room if there is none: the trained model is nowhere else."""

        def write() -> None:
            self._keep_state(self._trace.finish())
            self._directory.write_result(result)

        waiting = False
        while not self._disk.attempt("the result", write):
            if not waiting:
                LOG.error("the run is over, and waits for room for its result; Ctrl-C gives up")
            waiting = True
            if self._directory.wish() or hooks.interrupted():
                raise Interrupted("stopped before there was room for the result")
            await asyncio.sleep(_ROOM_INTERVAL)
        self._sign.show(DiskWorks())

    def _keep_state(self, mark: Mark) -> None:
        """The state at the end, for a run that is extended later."""
        node, folder = self._node, self._directory.last_state
        captured = capture(node.machine, node.process(None, []), self._accounts.save())
        captured.complete(self._engine)
        shutil.rmtree(folder, ignore_errors=True)
        captured.write(folder, 1, mark, config=self._directory.config_text)
