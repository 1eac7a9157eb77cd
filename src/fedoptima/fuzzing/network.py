"""The network between the cores: connections with two ends that may disagree.

One side still sends while the other has given up, a device is back before the server knows that it
was gone, messages of a session arrive when it is long over.
"""

from __future__ import annotations

from abc import ABC
from functools import partial

from fedoptima.core.events import Connected, Disconnected, Received, Rejected
from fedoptima.core.messages import Message, is_bulk, nbytes
from fedoptima.core.types import SERVER, NodeId
from fedoptima.fuzzing.cores import Cores
from fedoptima.fuzzing.nodes import Connection, DeviceProcess
from fedoptima.fuzzing.script import Kind
from fedoptima.testing.law_broken import LawBroken


class Network(Cores, ABC):
    def _transmit(self, connection: Connection, message: Message, *, upward: bool) -> None:
        """Messages of a class arrive in order; urgent ones overtake the bulk."""
        spec = self.devices[connection.device].spec
        seconds = spec.latency + nbytes(message) / spec.bytes_per_second
        lane = (upward, is_bulk(message))
        arrival = max(connection.last.get(lane, 0.0), self.now + seconds)
        connection.last[lane] = arrival
        due = partial(self._arrive, connection, message, upward=upward)
        self._kernel.at(arrival, due)

    def _arrive(self, connection: Connection, message: Message, *, upward: bool) -> None:
        held = connection.held_up if upward else connection.held_down
        if held is not None:
            held.append(partial(self._arrive, connection, message, upward=upward))
            return
        connection.said.append((upward, message))
        if not connection.dead(upward=upward):
            self._deliver(connection, message, upward=upward)

    def _deliver(self, connection: Connection, message: Message, *, upward: bool) -> None:
        """To the core, also when the session is over: it must not act on it then."""
        server, device = self.server, self.devices[connection.device]
        if not upward:
            known = device.last_session >= connection.number
            if known and device.process == connection.device_process:
                event = Received(SERVER, connection.number, message)
                self._of(device, partial(self._tell_device, device, event))()
            return
        if not server.up or server.process != connection.server_process:
            return  # it was on its way to a process that is dead
        current = server.sessions.get(device.name) is connection
        if device.sends_nonsense and current:
            device.restarts_after, device.sends_nonsense = device.sends_nonsense, 0.0
            device.expect_drop = True
            self._strikes(Kind.GARBAGE, device)
            self._tell_server(Rejected(device.name, connection.number, "planted nonsense"))
            return
        self._tell_server(Received(device.name, connection.number, message))

    def _connect(self, device: DeviceProcess) -> None:
        server = self.server
        if not device.alive or device.connection is not None or device.core.stopped:
            return
        if not server.up or self.now < device.unreachable_until:
            self._retry(device)
            return
        number = max(server.given.get(device.name, 0), device.last_session) + 1
        server.given[device.name] = number
        connection = Connection(device.name, number, server=server.process, process=device.process)
        device.connections.append(connection)
        replaced = server.sessions.get(device.name)
        server.sessions[device.name] = connection
        self._tell_server(Connected(device.name, number))
        if replaced is not None:  # its stream ends later, which is no news any more
            self._later(self._rng.choice((0.0, 1.0)), partial(self._ended, replaced))
        if device.loses_welcome:
            device.loses_welcome = False
            self._strikes(Kind.HALF_OPEN, device)
            self._later(self._rng.choice((1.0, 5.0)), partial(self._server_notices, connection))
            self._retry(device)
            return
        self._later(device.spec.latency, self._of(device, partial(self._welcome, connection)))

    def _welcome(self, connection: Connection) -> None:
        device, server = self.devices[connection.device], self.server
        if connection.dead_down or server.process != connection.server_process:
            self._retry(device)
            return
        if device.run != server.run:
            device.begin(server.run)
            connection.device_process = device.process
        device.connection, device.last_session = connection, connection.number
        self._tell_device(device, Connected(SERVER, connection.number))
        if device.hears_echo:
            self._later(self._rng.choice((0.0, 0.5, 2.0)), partial(self._echo, device))

    def _echo(self, device: DeviceProcess) -> None:
        """Whatever was said in sessions that are over arrives once more, or for the first time."""
        current = (self.server.sessions.get(device.name), device.connection)
        old = [earlier for earlier in device.connections if earlier not in current]
        device.hears_echo = not old
        if old:
            self._strikes(Kind.ECHO, device)
        for connection in old:
            for upward, message in tuple(connection.said):
                self._deliver(connection, message, upward=upward)
            if self._rng.random() < 0.3:
                self._ended(connection)

    def _retry(self, device: DeviceProcess) -> None:
        due = self._of(device, partial(self._connect, device))
        self._later(self._rng.choice((0.25, 0.5, 1.0)), due)

    def _break(self, connection: Connection, unnoticed: tuple[float, float]) -> None:
        """Both sides find out, each in its time."""
        device = self.devices[connection.device]
        notices = self._of(device, partial(self._device_notices, connection))
        self._later(unnoticed[0], partial(self._server_notices, connection))
        self._later(unnoticed[1], notices)

    def _server_notices(self, connection: Connection) -> None:
        server = self.server
        if server.process != connection.server_process or not server.up:
            return
        connection.dead_up = connection.dead_down = True
        if server.sessions.get(connection.device) is connection:
            del server.sessions[connection.device]
        self._ended(connection)
        device = self.devices[connection.device]
        self._later(0.25, self._of(device, partial(self._device_notices, connection)))

    def _ended(self, connection: Connection) -> None:
        """Also where the session was replaced: the core must not mind."""
        server = self.server
        if server.process == connection.server_process and server.up:
            self._tell_server(Disconnected(connection.device, connection.number))

    def _device_notices(self, connection: Connection) -> None:
        device = self.devices[connection.device]
        if device.connection is connection:
            device.connection = None
            connection.dead_up = connection.dead_down = True
            self._tell_device(device, Disconnected(SERVER, connection.number))
            self._retry(device)

    def _drop(self, name: NodeId, session: int) -> None:
        """The server ends a session for what the device has sent, and the device's process ends."""
        server, device = self.server, self.devices[name]
        connection = server.sessions.get(name)
        if connection is None or connection.number != session:
            return
        if not device.expect_drop:
            raise LawBroken("protocol", f"{name} was dropped")
        device.expect_drop = False
        del server.sessions[name]
        connection.dead_up = connection.dead_down = True
        self._tell_server(Disconnected(name, session))
        self._end_process(device, 0.0)

    # ---- processes ---------------------------------------------------------------------------

    def _start(self, device: DeviceProcess) -> None:
        if not device.alive:
            device.start()
            self._connect(device)

    def _end_process(self, device: DeviceProcess, unnoticed: float) -> None:
        connection = device.connection
        device.end()
        if connection is not None:  # what is under way still arrives, and then the end
            last = max([self.now, *(at for (up, _), at in connection.last.items() if up)])
            due = partial(self._server_notices, connection)
            self._later(last - self.now + unnoticed, due)
        self._later(device.restarts_after or 1.0, partial(self._start, device))
        device.restarts_after = 0.0
