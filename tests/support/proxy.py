"""A TCP relay between devices and their server that can fail in the ways a network does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event, Thread

from fedoptima.runtime.address import Address

DEADLINE = 180.0  # seconds, for what takes milliseconds


class Proxy:
    """Devices connect to ``address``. Its methods return when they have taken effect."""

    def __init__(self, server: Address) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._relays: dict[_Relay, asyncio.Task[None]] = {}
        self._blocked = False

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._listening = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop
        ).result(DEADLINE)
        self.address = Address("127.0.0.1", self._listening.sockets[0].getsockname()[1])
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(DEADLINE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE)

    async def _end(self) -> None:
        self._listening.close()
        for relay in self._relays:
            relay.close()
        await asyncio.gather(*self._relays.values())

    def cut(self) -> None:
        """All connections end, as when a router restarts. New ones are possible."""
        self._do(lambda: [relay.close() for relay in self._relays])

    def block(self) -> None:
        """All connections end, and nobody gets through until it is opened."""
        self._blocked = True
        self.cut()

    def open(self) -> None:
        self._blocked = False

    def go_silent(self) -> None:
        """What is connected stays so, but nothing gets through; neither side is told."""
        self._do(lambda: [relay.go_silent() for relay in self._relays])

    def hold(self) -> None:
        """Nothing gets through, and nothing is lost: it comes when it is let go."""
        self._do(lambda: [relay.hold() for relay in self._relays])

    def let_go(self) -> None:
        self._do(lambda: [relay.let_go() for relay in self._relays])

    def lose_devices(self) -> None:
        """The devices' ends are closed; the server is not told, and hears nothing more."""
        self._do(lambda: [relay.lose_device() for relay in self._relays])

    def _do(self, work: Callable[[], object]) -> None:
        done = Event()

        def do() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(do)
        assert done.wait(DEADLINE)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._blocked:
            writer.transport.abort()
            return
        try:
            upward = await asyncio.open_connection(self._server.host, self._server.port)
        except OSError:  # there is no server
            writer.transport.abort()
            return
        relay = _Relay((reader, writer), upward)
        self._relays[relay] = asyncio.create_task(relay.run())


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Relay:
    def __init__(self, device: Ends, server: Ends) -> None:
        self._device = device
        self._server = server
        self._silent = False
        self._moving = asyncio.Event()
        self._moving.set()
        self._closed = asyncio.Event()

    async def run(self) -> None:
        pumps = [
            asyncio.create_task(self._pump(self._device[0], self._server[1])),
            asyncio.create_task(self._pump(self._server[0], self._device[1])),
        ]
        await self._closed.wait()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._moving.wait()
                if not self._silent:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        if not self._silent:
            self.close()

    def close(self) -> None:
        for _, writer in (self._device, self._server):
            writer.transport.abort()
        self._closed.set()

    def go_silent(self) -> None:
        self._silent = True

    def hold(self) -> None:
        self._moving.clear()

    def let_go(self) -> None:
        self._moving.set()

    def lose_device(self) -> None:
        self._silent = True
        self._device[1].transport.abort()
