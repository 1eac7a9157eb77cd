"""The least that a server with these messages can cost: gRPC's asyncio and nothing else.

It takes the same messages over the same connections as the product, looks at none of them, and
answers each with a credit. ``train``: after each it also takes the training step of the tiny model
on its own, a stored batch: forward, loss, backward, the optimiser, nothing around them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from multiprocessing.connection import Connection

import grpc
import torch
from torch import nn

from benchmarks.network_memory import BATCH, tiny_model
from fedoptima.core.messages import TurnOn
from fedoptima.runtime.address import Address
from fedoptima.runtime.security.tls import ServerTLS
from fedoptima.runtime.timeouts import DEFAULT
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.channel import METHOD, SERVICE, server_options
from fedoptima.runtime.wire.codec import INLINE_BYTES, encode
from fedoptima.runtime.wire.frames import serialize

_LOOK = 0.2  # seconds between two looks at the pipe, as the product looks around


class BareServer:
    def __init__(self, work: Callable[[], None]) -> None:
        self.joined = 0
        self.batches = 0
        self._work = work

    async def serve(self, _: object, context: grpc.aio.ServicerContext) -> None:
        welcome = wire.Welcome(run="bare", session=1, recipe="", inline=INLINE_BYTES)
        credit = serialize(encode(TurnOn()).head)
        await context.read()
        await context.write(serialize(wire.Frame(welcome=welcome)))
        await context.read()
        self.joined += 1
        await context.write(credit)
        while await context.read() is not grpc.aio.EOF:
            self.batches += 1
            self._work()
            await context.write(credit)


def training_step(features: int) -> Callable[[], None]:
    side = tiny_model(features)[2:]  # type: ignore[index]
    optimizer = torch.optim.SGD(side.parameters(), lr=0.01)
    activation, labels = torch.randn(BATCH, features), torch.arange(BATCH) % 10

    def step() -> None:
        nn.functional.cross_entropy(side(activation), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


async def listen(
    bare: BareServer, tls: ServerTLS, parent: Connection, answer: Callable[[], bool]
) -> None:
    server = grpc.aio.server(options=server_options(DEFAULT))
    methods = {METHOD: grpc.stream_stream_rpc_method_handler(bare.serve)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    credentials = tls.credentials()
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    parent.send(Address("127.0.0.1", port))
    parent.send(os.getpid())
    while answer():
        await asyncio.sleep(_LOOK)
    await server.stop(None)
