"""The server: its core, its engine, the sessions of its devices, its checkpoints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias

import grpc

from fedoptima.core.effects import Effect, Evaluate, Fold, Halt, Run, Send
from fedoptima.core.errors import ProtocolViolation, TrainingDiverged, Unresponsive
from fedoptima.core.events import (
    Connected,
    Disconnected,
    Ended,
    Evaluated,
    EvaluationFailed,
    Extended,
    Metrics,
    Received,
    Restarted,
)
from fedoptima.core.machine import ComputeEngine, rejected
from fedoptima.core.messages import Message, Stop
from fedoptima.core.ranges import check_names
from fedoptima.core.server import ServerCore
from fedoptima.core.stopping import StopRule
from fedoptima.core.text import printable
from fedoptima.core.types import SERVER, NodeId
from fedoptima.engine.checkpoint import SavedEngine
from fedoptima.engine.determinism import prepare_thread
from fedoptima.runtime.compute import Compute
from fedoptima.runtime.node import Node
from fedoptima.runtime.server.bounds import MOST_SMALL, message_limit, most_held, unread
from fedoptima.runtime.server.checkpoint import Restored, ServerProcess
from fedoptima.runtime.server.checkpointer import Checkpointer
from fedoptima.runtime.server.device_records import DeviceRecords
from fedoptima.runtime.server.session import DeviceSession, Refusal, refusal_for
from fedoptima.trace.record import Record

DeviceObserver = Callable[[Sequence[Record]], None]  # is given new records of one device
Checked: TypeAlias = Message | ProtocolViolation  # as it is admitted, or why it is not


_OF_A_PROCESS = 1_000_000  # sessions that one device may have with one process of the server


class NetworkServerEngine(ComputeEngine, SavedEngine, Protocol):
    def evaluation(self) -> Callable[[], Metrics]: ...
    def admit(self, message: Message) -> None: ...
    def most_bytes(self, kind: type[Message]) -> int: ...
    def receive(self, message: Message) -> Message: ...


class ServerNode(Node):
    machine: ServerCore
    engine: NetworkServerEngine

    def __init__(
        self,
        machine: ServerCore,
        engine: NetworkServerEngine,
        compute: Compute,
        clock: Callable[[], float],
        *,
        run: str,
        incarnation: int,
        checkpointer: Checkpointer | None,
        records: DeviceRecords,
        log: logging.Logger,
    ) -> None:
        super().__init__(SERVER, machine, engine, compute, clock, incarnation=incarnation, log=log)
        self.run = run  # its id: devices bring work along only into the run they worked for
        self.incarnation = incarnation
        self.sessions: dict[NodeId, DeviceSession] = {}
        self.device_observers: list[DeviceObserver] = []
        self.dropped: dict[NodeId, tuple[str, str]] = {}  # for what it sent: its process, and why
        self._sessions_given: dict[NodeId, int] = {}  # the number of each device's last one
        self._checkpointer = checkpointer
        self.records = records
        self._evaluations: dict[int, Evaluate] = {}  # asked and not answered yet
        self._evaluator = ThreadPoolExecutor(
            1, thread_name_prefix="evaluation", initializer=prepare_thread
        )
        self._receiver = ThreadPoolExecutor(
            1, thread_name_prefix="receiver", initializer=prepare_thread
        )
        self._interrupted = False

    # ---- sessions ----------------------------------------------------------------------------

    def next_session(self, device: NodeId, last_of_device: int) -> int:
        """Higher than any the device has had: a restored server may have forgotten some, so each
        of its processes counts from a number of its own.

        Each device has its own numbers, and what it claims is believed as far as it is possible:
        a number that never was given changes nothing, for it and for all others.
        """
        given = max(self._sessions_given.get(device, 0), self.incarnation * _OF_A_PROCESS)
        if given < last_of_device <= given + _OF_A_PROCESS:
            given = last_of_device
        self._sessions_given[device] = given + 1
        return given + 1

    def opened(self, session: DeviceSession) -> None:
        self.sessions[session.device] = session
        self.log.info("%s connected from %s", session.device, session.peer)
        self.tell(Connected(session.device, session.number))

    def closed(self, session: DeviceSession, why: str = "") -> None:
        """Nothing is taken from it any more. May be called again."""
        if self.sessions.get(session.device) is not session:
            return
        del self.sessions[session.device]
        machine, device = self.machine, session.device
        # One that has failed is no session of the core's any more.
        early = device in machine.sessions and device not in machine.members
        left = "left before it joined" if early else "left"
        self.log.info("%s %s%s", device, left, f": {printable(why)}" if why else "")
        self.tell(Disconnected(session.device, session.number))

    async def prepare(self, message: Message, fill: Callable[[], None]) -> Checked:
        """Fill and check a message's tensors and begin to copy them, on a thread of its own."""

        def work() -> Checked:
            fill()
            try:
                self.engine.admit(message)
            except ProtocolViolation as error:
                return error
            return self.engine.receive(message)

        if self.outcome.done():
            return work()  # the thread may have been closed
        return await asyncio.get_running_loop().run_in_executor(self._receiver, work)

    def receive(
        self, session: DeviceSession, message: Message, checked: Checked | None = None
    ) -> None:
        """``checked``: what `prepare` returned for the message, if it was called before."""
        if self.sessions.get(session.device) is not session:
            return
        check_names(session.device, message)
        if checked is None:
            self.engine.admit(message)
            checked = self.engine.receive(message)
        elif isinstance(checked, ProtocolViolation):
            raise checked
        self.tell(Received(session.device, session.number, checked))

    def reject(self, session: DeviceSession, error: ProtocolViolation) -> None:
        """Drop a device for what it has sent, on the record if the core knows its session.

        One that has only stopped sending or reading may come back.
        """
        current = self.sessions.get(session.device) is session
        if may_return := current and isinstance(error, Unresponsive):
            session.end(refusal_for(error))
        self.tell(rejected(session.device, session.number, error))
        self.drop_peer(session.device, session.number, str(error))
        if may_return:
            self.dropped.pop(session.device, None)

    def send(self, effect: Send) -> None:
        session = self.sessions.get(effect.to)
        if session is not None and session.number == effect.session:
            session.outbox.put(effect.message)
            held = session.outbox.held
            if held > MOST_SMALL and held > most_held(self.engine.most_bytes):
                asyncio.get_running_loop().call_soon(self._reject_unread, session)

    def _reject_unread(self, session: DeviceSession) -> None:
        """Later than the effect that filled its outbox: see `Node`."""
        if self.sessions.get(session.device) is session:
            self.reject(session, Unresponsive(unread(session.outbox.held)))

    def limit(self, kind: type[Message]) -> int:
        """Bytes of a device's message."""
        return message_limit(self.engine.most_bytes, kind)

    def drop_peer(self, peer: NodeId, session: int, reason: str) -> None:
        found = self.sessions.get(peer)
        if found is not None and found.number == session:
            self.log.warning("%s is dropped: %s", peer, printable(reason))
            self.dropped[peer] = found.process, reason
            found.end(Refusal(grpc.StatusCode.INVALID_ARGUMENT, reason))
            self.closed(found, reason)

    # ---- devices' own records ----------------------------------------------------------------

    def take_records(self, session: DeviceSession, first: int, lines: Sequence[str]) -> int:
        """Put a device's records on disk, on the server's clock; says how many need not come again.

        From a session that was replaced none: its successor counts from what it was told.
        """
        device, clock, now = session.device, session.clock, self.clock()
        if self.sessions.get(device) is session:
            if not clock.known:
                raise ProtocolViolation(f"unexpected records, from number {first} on")
            # Whatever its clock says: what it reports has happened.
            records = self.records.take(
                device, first, lines, lambda theirs: min(clock.ours(theirs), now), now
            )
            for observe in self.device_observers:
                observe(records)
        return self.records.taken(device)

    # ---- evaluation --------------------------------------------------------------------------

    def evaluate(self, effect: Evaluate) -> None:
        """On a copy of the weights as they are now, on a thread of its own: training goes on."""
        self._evaluations[effect.index] = effect
        loop = asyncio.get_running_loop()

        def failed(error: Exception) -> None:
            self._evaluations.pop(effect.index, None)
            if not isinstance(error, TrainingDiverged):
                self.fail(error)
                return
            self.tell(EvaluationFailed(effect.index, str(error)))

        def measure(evaluation: Callable[[], Metrics]) -> None:
            task = loop.run_in_executor(self._evaluator, evaluation)
            task.add_done_callback(answer)

        def answer(future: asyncio.Future[Metrics]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if isinstance(error, Exception):
                failed(error)
                return
            self._evaluations.pop(effect.index, None)
            self.tell(Evaluated(effect.index, future.result()))

        self._compute.submit(self.engine.evaluation, measure, failed)

    # ---- checkpoints -------------------------------------------------------------------------

    def to_perform(self, effects: Sequence[Effect]) -> Sequence[Effect]:
        if self._working or self.machine.stopped:
            return effects
        checkpointer = self._checkpointer
        due = checkpointer is not None and checkpointer.due(self.machine)
        if not (due or self._interrupted):
            return effects
        for effect in effects:  # the core has counted it already, and the checkpoint holds the sum
            if isinstance(effect, Fold):
                self._perform(effect)
        effects = [effect for effect in effects if not isinstance(effect, Fold)]
        ordered = next((effect for effect in effects if isinstance(effect, Run)), None)
        asked = [effect for effect in effects if isinstance(effect, Evaluate)]
        if self._interrupted:
            # What is on the record is done: jobs and evaluations when the run is resumed, all
            # else now.
            now = [effect for effect in effects if not isinstance(effect, Run | Evaluate)]
            return [*now, *self._pause(ordered, asked)]
        self._checkpoint(ordered, asked)
        return effects

    def _checkpoint(self, running: Run | None, asked: Sequence[Evaluate]) -> None:
        assert self._checkpointer is not None
        process = self.process(running, asked)
        self._checkpointer.save(self.machine, self.engine, self._compute, process)

    def process(self, running: Run | None, asked: Sequence[Evaluate]) -> ServerProcess:
        return ServerProcess(
            running=running,
            timers=self.machine.timers,
            evaluations=[*self._evaluations.values(), *asked],
            sessions=self._sessions_given,
            run=self.run,
            incarnation=self.incarnation,
            now=self.clock(),
            device_marks=self.records.marks(),
        )

    def resume_from(self, restored: Restored, rule: StopRule) -> None:
        """The connections of the former process are gone; its running job is run again.

        ``rule``: when the run is over; another one than before extends it.
        """
        self._sessions_given = dict(restored.sessions)
        for evaluation in restored.evaluations:
            self.evaluate(evaluation)
        if restored.running is not None:
            self.start(restored.running)
        for key, at in restored.timers.items():
            self.set_timer(key, at)
        if self.machine.progress.rule != rule:
            self.tell(Extended(rule))
        self.tell(Restarted())
        for device, session in self.machine.leaving_order():
            self.tell(Disconnected(device, session))

    def end(self, reason: str) -> None:
        """With what the run has reached."""
        self.tell(Ended(reason))

    def interrupt(self) -> None:
        """Stop where the run can be resumed: now, or when the running job is done."""
        self._interrupted = True
        if not self._working and not self.outcome.done():
            for effect in self._pause(None, []):
                self._perform(effect)

    def _pause(self, running: Run | None, asked: Sequence[Evaluate]) -> list[Effect]:
        """Take a last checkpoint; returns what ends this process's part of the run."""
        if self._checkpointer is not None and self._checkpointer.possible(self.machine):
            self._checkpoint(running, asked)
        stop = Stop(INTERRUPTED)
        sends = [Send(name, session.number, stop) for name, session in self.sessions.items()]
        return [*sends, Halt(INTERRUPTED)]

    async def shut_down(self) -> None:
        """After the end: what is on its way to the disk gets there."""
        self.close()
        self.records.close()
        if self._checkpointer is not None:
            await self._checkpointer.close()
        self._evaluator.shutdown(wait=False, cancel_futures=True)
        self._receiver.shutdown(wait=False, cancel_futures=True)


INTERRUPTED = "the server was stopped by its operator"
