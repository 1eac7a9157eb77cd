"""A run over the network, from the server's side: from its start, or on from a checkpoint."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fedoptima.analysis.accounts import summarise
from fedoptima.analysis.live_accounts import LiveAccounts
from fedoptima.analysis.summary import Summary
from fedoptima.core.effects import Halt
from fedoptima.core.errors import ConfigError, TrainingDiverged
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.server import ServerEngine
from fedoptima.experiments.result import Result
from fedoptima.experiments.run_directory import RunDirectory, run_header
from fedoptima.experiments.server_setup import ServerSetup, instructions
from fedoptima.experiments.simulated_run import Interrupted, weights_digest
from fedoptima.runtime.address import Address
from fedoptima.runtime.clock import RunClock
from fedoptima.runtime.compute import Compute
from fedoptima.runtime.operator_log import ServerLog
from fedoptima.runtime.security.tls import ServerTLS
from fedoptima.runtime.server.bind_error import why_not
from fedoptima.runtime.server.checkpoint import Restored, load_server_checkpoint
from fedoptima.runtime.server.checkpointer import Keeper
from fedoptima.runtime.server.server_node import INTERRUPTED, ServerNode
from fedoptima.runtime.server.streams import ServerStreams
from fedoptima.runtime.timeouts import DEFAULT, Timeouts
from fedoptima.trace.reader import last_time, read_trace
from fedoptima.trace.writer import TraceWriter

_MB = 1_000_000
_GLANCE = 0.2  # seconds between two looks of an observer
_MOST_WATCHED = 64  # devices whose own records are read while the run goes on

LOG = logging.getLogger("fedoptima.server")

T = TypeVar("T")


@dataclass(frozen=True)
class ServerWatch:
    """What an onlooker may see while a run goes on."""

    setup: ServerSetup
    node: ServerNode
    live: LiveAccounts
    address: Address


# Goes on beside the run, given the address; the run ends with it if it fails.
Beside = Callable[[Address], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Company:
    """Who is there while the run goes on. All of it is called on the run's event loop."""

    ready: Callable[[Address], None] = lambda _: None  # told the address, once devices can come
    observe: Callable[[ServerWatch], None] | None = None  # a few times a second
    interrupted: Callable[[], bool] = lambda: False  # yes: keep a checkpoint and stop
    beside: Beside | None = None


ALONE = Company()
LOOPBACK = Address("127.0.0.1", 0)


def serve(
    setup: ServerSetup,
    directory: RunDirectory,
    *,
    listen: Address = LOOPBACK,
    tls: ServerTLS | None = None,
    resume: bool = False,
    company: Company = ALONE,
    timeouts: Timeouts = DEFAULT,
) -> Result:
    """Lead a run to its end. Raises `Interrupted` if it was stopped before; it can be resumed."""

    async def lead() -> Result:
        return await _ServerRun(setup, directory, resume, timeouts).lead(listen, tls, company)

    with directory.taken(), deterministic(setup.recipe.threads):
        return asyncio.run(lead())


def _security(tls: ServerTLS | None) -> str:
    return "without certificates" if tls is None else "for devices with a certificate of its CA"


class _View:
    """Whoever looks on may fail - devices record what they like - and the run goes on without."""

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
                LOG.exception("what goes on can be shown no more; the run goes on")

        return look


class _ServerRun:
    def __init__(
        self, setup: ServerSetup, directory: RunDirectory, resume: bool, timeouts: Timeouts
    ) -> None:
        self._setup = setup
        self._directory = directory
        self._timeouts = timeouts
        self._engine = ServerEngine(setup.task)
        restored = self._restore() if resume else None
        if restored is None:
            self._begin_anew(resume)
        self._node = self._build_node(restored)
        self._restored = restored
        self._live = LiveAccounts()

    # ---- the beginning -----------------------------------------------------------------------

    def _restore(self) -> Restored | None:
        folder, compute = self._directory.checkpoints, self._setup.task.compute
        restored = load_server_checkpoint(folder, self._engine, compute)
        if restored is not None:
            self._trace, _ = TraceWriter.resume(self._directory.trace, restored.mark)
            # Devices' records are not cut back: what follows is later than any of them.
            self._clock = RunClock(max(restored.now, last_time(self._directory.trace)))
            LOG.info("going on from the checkpoint of %.1f s into the run", restored.now)
        return restored

    def _begin_anew(self, resume: bool) -> None:
        if resume:
            LOG.warning("no checkpoint was kept yet: the run begins anew")
        shutil.rmtree(self._directory.devices, ignore_errors=True)
        header = run_header(self._setup.recipe, dry=False)
        self._clock = RunClock()
        self._trace = TraceWriter(self._directory.trace, header)

    def _build_node(self, restored: Restored | None) -> ServerNode:
        recipe = self._setup.recipe
        self._directory.devices.mkdir(exist_ok=True)
        self._compute = Compute("server", threads=recipe.threads)
        keeper = Keeper(
            self._directory.checkpoints,
            self._trace,
            seconds=recipe.deploy.checkpoint_seconds,
            merges=recipe.deploy.checkpoint_merges,
            kept=recipe.deploy.checkpoints_kept,
            log=LOG,
            number=restored.number if restored else 0,
            version=restored.core.version if restored else 0,
        )
        node = ServerNode(
            restored.core if restored else self._setup.core(),
            self._engine,
            self._compute,
            self._clock,
            run=restored.run if restored else secrets.token_hex(8),
            life=restored.life + 1 if restored else 0,
            keeper=keeper,
            patience=recipe.deploy.patience,
            device_traces=self._directory.devices,
            log=LOG,
        )
        node.observers.append(self._trace.write)
        node.observers.append(ServerLog(LOG).observe)
        return node

    # ---- the run -----------------------------------------------------------------------------

    async def lead(self, listen: Address, tls: ServerTLS | None, company: Company) -> Result:
        node, recipe = self._node, self._setup.recipe
        streams = ServerStreams(
            node,
            instructions(self._setup),
            limit=int(recipe.deploy.max_message_mb * _MB),
            pinned=self._setup.task.compute.type == "cuda",
            timeouts=self._timeouts,
        )
        try:
            server, port = streams.listen(str(listen), tls)
        except RuntimeError as error:
            raise ConfigError(why_not(listen)) from error
        address = replace(listen, port=port)
        watch = ServerWatch(self._setup, node, self._live, address)
        view = self._admit_onlooker(company, watch)
        if self._restored is not None:
            node.go_on_from(self._restored)
        await server.start()  # not before: a device that comes finds all as it was
        beside = asyncio.ensure_future(company.beside(address)) if company.beside else None
        try:
            LOG.info("listening on %s, %s", address, _security(tls))
            company.ready(address)
            halt = await self._until_the_end(company, view, beside)
            await streams.farewell()
        finally:
            await node.close_up()
            await server.stop(grace=_GLANCE)  # without one, devices would be told of an error
            self._compute.close()
            self._trace.close()
            if beside is not None:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)
        return self._finish(halt)

    def _admit_onlooker(self, company: Company, watch: ServerWatch) -> Callable[[], None]:
        """Before anything happens; calls the onlooker when called."""
        if company.observe is None:
            return lambda: None
        view, observe = _View(), company.observe
        if self._restored is not None:
            view.guarded(self._live.catch_up)(read_trace(self._directory.trace))
        self._node.observers.append(view.guarded(self._live.observe))
        self._node.device_observers.append(view.guarded(self._watch_device))

        def look(now: float) -> None:
            self._live.advance(now)
            observe(watch)

        return lambda: view.guarded(look)(self._clock())

    async def _until_the_end(
        self, company: Company, look: Callable[[], None], beside: asyncio.Future[None] | None
    ) -> Halt:
        asked = False
        while not self._node.outcome.done():
            if company.interrupted() and not asked:
                asked = True
                self._node.interrupt()
            look()
            self._trace.keep_readable()
            if beside is not None and beside.done():
                beside.result()  # raises what ended it
            await asyncio.wait({self._node.outcome}, timeout=_GLANCE)
        return self._node.outcome.result()

    def _watch_device(self, lines: Sequence[str]) -> None:
        if len(self._node.sessions) <= _MOST_WATCHED:
            self._live.observe_lines(lines)

    # ---- the end -----------------------------------------------------------------------------

    def _finish(self, halt: Halt) -> Result:
        directory, recipe, engine = self._directory, self._setup.recipe, self._engine
        if halt.reason == INTERRUPTED:
            raise Interrupted(f"stopped at {self._clock():.1f} s of the run")
        if halt.failed:
            raise TrainingDiverged(f"{halt.reason} (the trace is in {directory.trace})")
        weights = engine.export()
        result = Result(
            name=recipe.name,
            method=recipe.method.name,
            seed=recipe.seed,
            reason=halt.reason,
            rounds=self._node.machine.progress.rounds,
            events=self._trace.digest.records,
            summary=self._summary(),
            trace_digest=self._trace.digest.hexdigest(),
            weights_digest=weights_digest(weights),
            split=engine.plan.split if engine.plan else 0,
            directory=directory.path,
            weights=weights,
        )
        directory.write_result(result)
        shutil.rmtree(directory.checkpoints, ignore_errors=True)
        return result

    def _summary(self) -> Summary:
        trace = self._directory.trace
        try:
            return summarise(trace)
        except Exception as error:  # whatever a device has recorded must not cost the run its end
            LOG.error("devices' own records are left out of the summary: %s", error)
            return summarise(trace, devices=False)
