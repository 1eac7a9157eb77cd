"""A run whose connections can be cut, held and watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedoptima.core.events import Connected
from fedoptima.core.jobs import ExportModel
from fedoptima.core.types import SERVER, NodeId
from fedoptima.runtime.timeouts import Timeouts
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.verification.replay import replay
from tests.support.network import NAMES, QUICK, Gate, Server, Work, start_device, tiny_recipe, until
from tests.support.proxy import Proxy


class Scene:
    """A run in which "slow" sits behind a proxy and every device can be held."""

    def __init__(self, server: Server, proxy: Proxy, folder: Path) -> None:
        self.server = server
        self.proxy = proxy
        self.folder = folder
        self.gates = {name: Gate() for name in NAMES}
        self.gate = self.gates["slow"]
        self.devices: dict[str, Work] = {}

    def start(self, *names: str) -> None:
        for name in names:
            to = self.proxy.address if name == "slow" else self.server.address
            gate = self.gates[name]
            self.devices[name] = start_device(name, to, self.folder, gate=gate)

    def hold_others(self) -> None:
        """Without this they might be done before anything has happened."""
        for gate in self.gates.values():
            if gate is not self.gate:
                gate.hold(ExportModel)

    def let_others_go(self) -> None:
        for gate in self.gates.values():
            if gate is not self.gate:
                gate.hold()

    @property
    def session(self) -> int:
        """Of "slow", at the server; 0: it is not there."""
        assert self.server.watch is not None
        found = self.server.watch.node.sessions.get(NodeId("slow"))
        return found.number if found else 0

    def comes_back(self, after: int) -> None:
        """It takes part again: a barrier would not wait for one that is merely connected."""
        assert self.server.watch is not None
        members = self.server.watch.node.machine.members

        def back() -> bool:
            member = members.get(NodeId("slow"))
            return member is not None and member.session > after

        until(back, "the device is back")

    def finish(self) -> list[Record]:
        """All are let go; the run comes to its end and can be explained. What was recorded."""
        for gate in self.gates.values():
            gate.hold()
        result = self.server.result()
        assert result.reason.endswith("done")
        assert [device.answer() for device in self.devices.values()] == [result.reason] * 3
        again = replay(self.server.directory.path, weights=True, allow_modules=["tests"])
        assert again.difference is None, again.difference
        assert again.identical, again.weights
        return list(read_trace(self.server.directory.trace))


@contextmanager
def scene(
    tmp_path: Path, name: str, /, timeouts: Timeouts = QUICK, **parts: object
) -> Iterator[Scene]:
    recipe = tiny_recipe(name, **parts)
    with (
        Server(recipe, tmp_path / "run", timeouts=timeouts) as server,
        Proxy(server.address) as proxy,
    ):
        yield Scene(server, proxy, tmp_path)


def sessions_of(device: str, records: list[Record]) -> list[int]:
    events = (record.event for record in records if record.node == SERVER)
    return [e.session for e in events if isinstance(e, Connected) and e.peer == device]
