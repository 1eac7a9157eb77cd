"""Where the devices of a run connect: to the server's own process, or to gateways before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fedoptima.engine.server_admission import Expected
from fedoptima.experiments.server_setup import ServerSetup, instructions
from fedoptima.runtime.address import Address
from fedoptima.runtime.clock import RunClock
from fedoptima.runtime.gateway.hub import Gateways
from fedoptima.runtime.gateway.messages import Start
from fedoptima.runtime.security.access_lists import AccessLists
from fedoptima.runtime.security.tls import ServerTLS
from fedoptima.runtime.server.descriptors import most_connections, shortage
from fedoptima.runtime.server.reception import NodeReception
from fedoptima.runtime.server.server_node import ServerNode
from fedoptima.runtime.server.streams import ServerStreams
from fedoptima.runtime.timeouts import Timeouts

_MB = 1_000_000


class Entrance(Protocol):
    def bind(self, address: Address) -> Address:
        """Take the port; nobody can connect yet."""

    async def open(self) -> None: ...
    def enforce_access(self) -> None: ...
    async def farewell(self) -> None: ...
    async def close(self) -> None: ...


def build_entrance(
    setup: ServerSetup,
    node: ServerNode,
    clock: RunClock,
    expected: Callable[[], Expected],
    *,
    tls: ServerTLS | None,
    access: AccessLists,
    timeouts: Timeouts,
    gateways: int,
) -> Entrance:
    """``expected``: what devices may send now. ``gateways``: 0: this process takes them in."""
    recipe, limit = instructions(setup), int(setup.recipe.deploy.max_message_mb * _MB)
    reception = NodeReception(node, timeouts)
    on_gpu = setup.workload.compute.type == "cuda"
    devices = max(setup.expected.devices, setup.expected.at_start)
    if warning := shortage(devices, gateways):
        node.log.warning(warning)
    connections = most_connections(devices, gateways)
    if gateways:
        start = Start(tls, access, timeouts, recipe, limit, connections, clock.at_zero)
        return Gateways(node, reception, start, count=gateways, expected=expected, pinned=on_gpu)
    return ServerStreams(
        node,
        reception,
        recipe,
        limit=limit,
        tls=tls,
        pinned=on_gpu,
        aside=on_gpu,
        access=access,
        timeouts=timeouts,
        connections=connections,
    )
