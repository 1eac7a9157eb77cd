"""A run over the network, from the server's side: from its start, or on from a checkpoint."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedoptima.api.directory import RunDirectory, run_header
from fedoptima.api.result import Result
from fedoptima.api.run import Interrupted, weights_digest
from fedoptima.api.serving import ServerSetup, recipe_for_devices
from fedoptima.core.effects import Halt
from fedoptima.core.errors import ConfigError, TrainingDiverged
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.server import ServerEngine
from fedoptima.report.accounts import summarise
from fedoptima.report.live import LiveAccounts
from fedoptima.runtime.address import Address
from fedoptima.runtime.checkpoint import Restored, load_server_checkpoint
from fedoptima.runtime.clock import RunClock
from fedoptima.runtime.compute import Compute
from fedoptima.runtime.keeper import Keeper
from fedoptima.runtime.server_node import INTERRUPTED, ServerNode
from fedoptima.runtime.server_streams import ServerStreams
from fedoptima.runtime.timeouts import DEFAULT, Timeouts
from fedoptima.runtime.tls import ServerTLS
from fedoptima.trace.reader import last_time
from fedoptima.trace.writer import TraceWriter

_MB = 1_000_000
_GLANCE = 0.2  # seconds between two looks of an observer
_MOST_WATCHED = 64  # devices whose own records are read while the run goes on

LOG = logging.getLogger("fedoptima.server")


@dataclass(frozen=True)
class ServerWatch:
    """What an onlooker may see while a run goes on."""

    setup: ServerSetup
    node: ServerNode
    live: LiveAccounts
    address: Address


@dataclass(frozen=True)
class Company:
    """Who is there while the run goes on. All of it is called on the run's event loop."""

    ready: Callable[[Address], None] = lambda _: None  # told the address, once devices can come
    observe: Callable[[ServerWatch], None] | None = None  # a few times a second
    interrupted: Callable[[], bool] = lambda: False  # yes: keep a checkpoint and stop
    # Goes on beside the run, given the address; the run ends with it if it fails.
    beside: Callable[[Address], Coroutine[Any, Any, None]] | None = None


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

    with deterministic(setup.recipe.threads):
        return asyncio.run(lead())


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
            self._clock = RunClock(max(restored.now, last_time(self._directory.trace)))
            self._trace, _ = TraceWriter.resume(self._directory.trace, restored.mark)
            LOG.info("going on from %.1f s of the run", restored.now)
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
        )
        node = ServerNode(
            restored.core if restored else self._setup.core(),
            self._engine,
            self._compute,
            self._clock,
            run=restored.run if restored else secrets.token_hex(8),
            life=restored.life + 1 if restored else 0,
            keeper=keeper,
            device_traces=self._directory.devices,
            log=LOG,
        )
        node.observers.append(self._trace.write)
        return node

    # ---- the run -----------------------------------------------------------------------------

    async def lead(self, listen: Address, tls: ServerTLS | None, company: Company) -> Result:
        node, recipe = self._node, self._setup.recipe
        streams = ServerStreams(
            node,
            recipe_for_devices(recipe),
            limit=int(recipe.deploy.max_message_mb * _MB),
            pinned=self._setup.task.compute.type == "cuda",
            timeouts=self._timeouts,
        )
        try:
            server, port = await streams.listen(str(listen), tls)
        except RuntimeError as error:
            raise ConfigError(
                f"--listen {listen}: cannot be listened on ({error}); is another server running "
                "there? choose another port"
            ) from error
        address = replace(listen, port=port)
        beside = asyncio.ensure_future(company.beside(address)) if company.beside else None
        try:
            if self._restored is not None:
                node.go_on_from(self._restored)
            company.ready(address)
            halt = await self._until_the_end(address, company, beside)
            await streams.farewell()
        finally:
            await node.close_up()
            await server.stop(grace=None)
            self._compute.close()
            self._trace.close()
            if beside is not None:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)
        return self._finish(halt)

    async def _until_the_end(
        self, address: Address, company: Company, beside: asyncio.Future[None] | None
    ) -> Halt:
        watch = ServerWatch(self._setup, self._node, self._live, address)
        if company.observe is not None:
            self._node.observers.append(self._live.observe)
            self._node.device_observers.append(self._watch_device)
        asked = False
        while not self._node.outcome.done():
            if company.interrupted() and not asked:
                asked = True
                self._node.interrupt()
            if company.observe is not None:
                self._live.advance(self._clock())
                company.observe(watch)
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
            summary=summarise(directory.trace),
            trace_digest=self._trace.digest.hexdigest(),
            weights_digest=weights_digest(weights),
            split=engine.plan.split if engine.plan else 0,
            directory=directory.path,
            weights=weights,
        )
        directory.write_result(result)
        shutil.rmtree(directory.checkpoints, ignore_errors=True)
        return result
