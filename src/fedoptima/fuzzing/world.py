"""Plays a script: what goes wrong when, and the end, when everybody takes part again."""

from __future__ import annotations

from functools import partial

from fedoptima.core.effects import Effect, Halt
from fedoptima.core.events import Disconnected, Ended, Restarted
from fedoptima.core.types import SERVER, NodeId
from fedoptima.fuzzing.cores import Told
from fedoptima.fuzzing.goals import Goals
from fedoptima.fuzzing.network import Network
from fedoptima.fuzzing.nodes import Checkpoint, Connection, DeviceProcess
from fedoptima.fuzzing.script import NEVER, Fault, Kind, Script
from fedoptima.testing.law_broken import LawBroken

MOST_EVENTS = 12_000  # no script needs half as many


def _nobody(at: float, node: NodeId, what: object, effects: list[Effect]) -> None:
    """Is told what happens, and does nothing with it."""


class World(Network):
    def __init__(self, script: Script, told: Told = _nobody) -> None:
        super().__init__(script, told)
        self._goals: Goals | None = None
        self.merges_lost = 0  # by one crash of the server, at most

    def run(self) -> Halt:
        for device in self.devices.values():
            self._later(device.spec.joins_at, partial(self._start, device))
        for fault in self.script.faults:
            self._later(fault.at, partial(self._apply, fault))
        if self.script.stop is NEVER:
            self._later(self.script.calm_from, self._calm)
        while self.outcome is None:
            due = self._kernel.pop()
            if due is None:
                raise LawBroken("progress", "nothing can happen any more, and the run is not over")
            due()  # type: ignore[operator]
            if self.events > MOST_EVENTS:
                what = "the run does not end"
                raise LawBroken("progress", self._goals.missing() if self._goals else what)
        if self.outcome.failed and "no update was accepted" not in self.outcome.reason:
            raise LawBroken("progress", f"the run failed: {self.outcome.reason}")
        return self.outcome

    def _calm(self) -> None:
        """From here on nothing goes wrong: everybody has to take part again."""
        self._crash_due = None
        self._goals = Goals(self.script, self.server.books)
        self._after_event()

    def _after_event(self) -> None:
        if self._goals is not None and self._goals.reached():
            self._goals = None
            self._tell_server(Ended("the script is over"))

    def _restore(self, died: float, damaged: bool) -> None:
        server, before = self.server, self.server.core.version
        found = server.restore(died, damaged=damaged)
        self.merges_lost = max(self.merges_lost, before - server.core.version)
        if found is not None:
            self._resume(found)
        if self._goals is not None:
            self._calm()

    def _resume(self, found: Checkpoint) -> None:
        """As `ServerNode.resume_from`."""
        server = self.server
        for evaluation in found.evaluations:
            self._evaluate(evaluation)
        if found.running is not None:
            self._start_server_job(found.running)
        for key, at in found.timers.items():
            self._set_timer(key, at)
        self._resuming = True
        self._tell_server(Restarted())
        for name, number in server.core.leaving_order():
            self._tell_server(Disconnected(name, number))
        self._resuming = False

    # ---- faults ------------------------------------------------------------------------------

    def _apply(self, fault: Fault) -> None:
        self._told(self.now, fault.node, fault, [])
        if fault.node == SERVER:
            self._apply_to_server(fault)
        else:
            self._apply_to_device(fault, self.devices[fault.node])

    def _apply_to_server(self, fault: Fault) -> None:
        server = self.server
        if fault.kind is Kind.DISK:
            server.disk_full_until = max(server.disk_full_until, fault.over)
            self.tries[fault.kind] += 1
            return
        if not server.up:
            return
        if fault.variant:
            self._crash_due = fault
        else:
            self._crash(fault)

    def _crash(self, fault: Fault) -> None:
        """The server's process dies; after a while it is restored."""
        server = self.server
        self._strikes(fault.kind)
        connections = list(server.sessions.values())
        server.end()
        for connection in connections:
            connection.dead_up = connection.dead_down = True
            device = self.devices[connection.device]
            notices = self._of(device, partial(self._device_notices, connection))
            self._later(fault.unnoticed[1], notices)
        damaged = fault.kind is Kind.DAMAGED
        self._later(fault.lasts, partial(self._restore, self.now, damaged))

    def _apply_to_device(self, fault: Fault, device: DeviceProcess) -> None:
        connection = device.connection
        match fault.kind:
            case Kind.JOB:
                device.fails = fault.lasts or 0.5
                return
            case Kind.SERVER_JOB:
                self.server.fails_with[device.name] = fault.lasts or 0.5
                return
            case Kind.GARBAGE:
                device.sends_nonsense = fault.lasts or 0.5
                return
            case Kind.HALF_OPEN if fault.variant == "welcome lost":
                device.loses_welcome = True
                return
            case Kind.ECHO:
                self._echo(device)
                return
            case Kind.KILL | Kind.CHURN if device.alive:
                if fault.variant == "state lost":
                    device.saved_step = 0
                device.restarts_after = fault.lasts
                self._end_process(device, fault.unnoticed[0])
            case Kind.HANG if device.alive and not device.hung:
                self._hang(fault, device)
            case Kind.CUT if connection is not None:
                device.unreachable_until = max(device.unreachable_until, self.now + fault.lasts)
                connection.dead_up = connection.dead_down = True
                self._break(connection, fault.unnoticed)
            case Kind.HALF_OPEN if connection is not None:
                connection.dead_up |= fault.variant in ("up", "both")
                connection.dead_down |= fault.variant in ("down", "both")
                self._break(connection, fault.unnoticed)
            case Kind.DELAY | Kind.NOTHING if connection is not None:
                self._hold(fault, connection)
            case _:
                return  # nothing is there that could go wrong
        self._strikes(fault.kind, device)

    def _hang(self, fault: Fault, device: DeviceProcess) -> None:
        device.hung = True
        process, connection = device.process, device.connection
        if connection is not None and fault.unnoticed[0] < fault.lasts:
            self._later(fault.unnoticed[0], partial(self._server_notices, connection))

        def over() -> None:
            if device.process != process:
                return
            device.hung = False
            if fault.variant == "killed":
                device.restarts_after = 0.5
                self._end_process(device, 0.0)
                return
            backlog, device.backlog = device.backlog, []
            for due in backlog:
                due()

        self._later(fault.lasts, over)

    def _hold(self, fault: Fault, connection: Connection) -> None:
        both = fault.kind is Kind.NOTHING
        if (both or fault.variant == "up") and connection.held_up is None:
            connection.held_up = []
        if (both or fault.variant == "down") and connection.held_down is None:
            connection.held_down = []

        def release() -> None:
            held = [*(connection.held_up or ()), *(connection.held_down or ())]
            connection.held_up = connection.held_down = None
            for due in held:
                due()

        self._later(fault.lasts, release)
