"""A core and what it needs around it: a clock, a compute thread, timers, a trace.

The event loop is the only caller of the core. Performing an effect never calls the core back at
once: whatever follows from it comes as another event, later.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from fedoptima.core.effects import (
    FIGURES,
    Drop,
    Effect,
    Evaluate,
    Fold,
    Halt,
    Note,
    NoteKind,
    Run,
    Send,
    SetTimer,
)
from fedoptima.core.errors import FedOptimaError, InvariantBroken, ProtocolViolation
from fedoptima.core.events import (
    DiskFailing,
    DiskWorks,
    DriverEvent,
    Event,
    Received,
    Rejected,
    TimerFired,
)
from fedoptima.core.jobs import AddUp, Merge
from fedoptima.core.machine import (
    ComputeEngine,
    Machine,
    Outcome,
    broke_the_protocol,
    job_failed,
)
from fedoptima.core.text import printable, quoted
from fedoptima.core.types import NodeId, payload_id
from fedoptima.runtime.compute import Compute
from fedoptima.trace.record import Record, RecordObserver


class Node(ABC):
    def __init__(
        self,
        name: NodeId,
        machine: Machine,
        engine: ComputeEngine,
        compute: Compute,
        clock: Callable[[], float],
        *,
        incarnation: int,
        log: logging.Logger,
    ) -> None:
        self.name = name
        self.machine = machine
        self.engine = engine
        self.clock = clock
        self.log = log
        self.observers: list[RecordObserver] = []
        self.failure: Exception | None = None  # what a job raised
        self.outcome: asyncio.Future[Halt] = asyncio.get_running_loop().create_future()
        self._compute = compute
        self._incarnation = incarnation
        self._working = False  # a job is with the engine
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # ---- what the two kinds of node do differently -------------------------------------------

    @abstractmethod
    def send(self, effect: Send) -> None: ...

    @abstractmethod
    def evaluate(self, effect: Evaluate) -> None: ...

    @abstractmethod
    def drop_peer(self, peer: NodeId, session: int, reason: str) -> None:
        """End the session; the core learns of it by another event."""

    def to_perform(self, effects: Sequence[Effect]) -> Sequence[Effect]:
        """What is performed now. Between an event and its effects all state is at rest."""
        return effects

    # ---- events and effects ------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        if self.outcome.done():
            return
        try:
            self._handle(event)
        except Exception as error:  # the caller cannot do anything about it
            self.fail(error)

    def _handle(self, event: Event) -> None:
        now = self.clock()
        try:
            effects = self.machine.handle(event, now)
        except ProtocolViolation as error:
            if not isinstance(event, Received | Rejected):
                raise
            self._record(now, event, [broke_the_protocol(event.sender, error)])
            self.drop_peer(event.sender, event.session, str(error))
            return
        self._record(now, event, effects)
        for effect in self.to_perform(effects):
            self._perform(effect)

    def fail(self, error: BaseException) -> None:
        """A bug, or an error that cannot be handled: the run ends and the trace is saved."""
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def note(self, event: DiskFailing | DiskWorks) -> None:
        """Record what the core is not told."""
        self._record(self.clock(), event, [])

    def _record(self, now: float, event: Event | DriverEvent, effects: list[Effect]) -> None:
        record = Record(now, self.name, event, effects)
        for observe in self.observers:
            observe(record)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send():
                self.send(effect)
            case Run():
                self.start(effect)
            case Fold(part):
                work = partial(self.engine.execute, AddUp(part), part.data.id)
                self._compute.submit(work, lambda _: None, self.fail, AddUp)
            case Evaluate():
                self.evaluate(effect)
            case SetTimer(key, at):
                self.set_timer(key, at)
            case Note(kind, about, text):
                level = logging.DEBUG if kind in FIGURES else logging.WARNING
                said = f": {_said(kind, text)}" if text else ""
                self.log.log(level, "%s: %s%s", about, kind, said)
            case Drop(peer, session, reason):  # later: the core is not called back at once
                loop = asyncio.get_running_loop()
                loop.call_soon(self.drop_peer, peer, session, reason)
            case Halt():
                if not self.outcome.done():
                    self.outcome.set_result(effect)

    # ---- jobs --------------------------------------------------------------------------------

    def start(self, order: Run) -> None:
        self._working = True
        ticket, job = order.ticket, order.job
        result = payload_id(self.name, self._incarnation, ticket)

        def done(outcome: Outcome) -> None:
            self._working = False
            self.tell(outcome.event(ticket, job))

        def failed(error: Exception) -> None:
            self._working = False
            if isinstance(error, InvariantBroken):
                self.fail(error)
                return
            why = printable(str(error))
            self.log.error("%s failed: %s", type(job).__name__, why, exc_info=_trace_of(error))
            self.failure = error
            self.tell(job_failed(ticket, job, error))

        # A merge takes as long as there are updates in it: the last one says nothing of the next.
        kind = None if isinstance(job, Merge) else type(job)
        self._compute.submit(lambda: self.engine.execute(job, result), done, failed, kind)

    # ---- timers ------------------------------------------------------------------------------

    def set_timer(self, key: str, at: float) -> None:
        previous = self._timers.pop(key, None)
        if previous is not None:
            previous.cancel()
        delay = max(0.0, at - self.clock())
        self._timers[key] = asyncio.get_running_loop().call_later(delay, self._fire, key)

    def _fire(self, key: str) -> None:
        del self._timers[key]
        self.tell(TimerFired(key))

    def close(self) -> None:
        """Events are ignored from now on."""
        self.outcome.cancel()
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()


def _said(kind: str, text: str) -> str:
    """A device's own words are quoted, ours are not."""
    return quoted(text) if kind == NoteKind.DEVICE_FAILED else printable(text)


def _trace_of(error: Exception) -> Exception | None:
    """Only a bug needs its traceback; the others are explained by their messages."""
    return None if isinstance(error, FedOptimaError) else error
