"""A device process: it finds its server, works for it, and reconnects until the run is over."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Halt
from fedoptima.core.errors import FedOptimaError, describe
from fedoptima.core.text import printable
from fedoptima.core.types import NodeId
from fedoptima.engine.determinism import prepare_thread
from fedoptima.runtime.address import Address
from fedoptima.runtime.clock import RunClock
from fedoptima.runtime.compute import Compute
from fedoptima.runtime.device.backoff import Backoff
from fedoptima.runtime.device.device_node import DeviceNode, NetworkDeviceEngine
from fedoptima.runtime.device.link import ConnectionLost, DeviceLink
from fedoptima.runtime.device.spool import Spool
from fedoptima.runtime.device.state import StateFile
from fedoptima.runtime.device.telemetry import Telemetry
from fedoptima.runtime.disk import Disk
from fedoptima.runtime.operator_log import DeviceLog
from fedoptima.runtime.security.tls import DeviceTLS
from fedoptima.runtime.security.tls_diagnosis import diagnose
from fedoptima.runtime.timeouts import DEFAULT, Timeouts
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.channel import PATH, client_options
from fedoptima.runtime.wire.codec import INLINE_BYTES, SCHEMA
from fedoptima.runtime.wire.frames import deserialize, serialize
from fedoptima.runtime.wire.outbox import LinkPace
from fedoptima.runtime.wire.versions import mixture
from fedoptima.version import __version__

# The codes with which the server refuses this device; everything else is tried again.
_FINAL = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,  # what this device has sent: it would send it again
)
_MOST_DETAILS = 1_000  # characters of what the server says when it ends a stream
_NOT_CONNECTED = "Failed to connect to remote host: "  # gRPC's words, before the system's
_NO_HTTP2 = "Failed parsing HTTP/2"  # so are these
_OVER = grpc.StatusCode.NOT_FOUND
_LAST_ATTEMPT = 0.5  # seconds at least
_LARGEST = 1 << 30  # bytes of a message


class Refused(FedOptimaError):
    """The server refuses this device, and would the next time, too."""


class Unreachable(FedOptimaError):
    """No server was found in the time given."""


@dataclass(frozen=True)
class Workplace:
    """What a device needs to work in a run, built from the server's recipe."""

    engine: NetworkDeviceEngine
    samples: int
    threads: int | None  # of torch
    measure_speed: Callable[[], float]  # FLOP/s


@dataclass(frozen=True)
class Pace:
    """The link slowed down for an experiment; None: as fast as it is. Bytes per second."""

    up: float | None = None
    down: float | None = None


class Device:
    def __init__(
        self,
        name: str,
        server: Address,
        *,
        tls: DeviceTLS | None,
        build: Callable[[str], Workplace],
        state: StateFile,
        pace: Pace | None = None,
        give_up_after: float | None = None,
        stays: bool = False,
        let_in: bool = False,
        timeouts: Timeouts = DEFAULT,
        log: logging.Logger | None = None,
    ) -> None:
        """``build`` makes the workplace from the recipe's JSON.

        ``stays``: once its server has let it in (``let_in``: in a run before), it also outlasts
        that server's mistakes with TLS. Its own security it never changes.
        """
        self.name = NodeId(name)
        self._server = server
        self._tls = tls
        self._build = build
        self._state = state
        self._pace = pace or Pace()
        self._give_up_after = give_up_after
        self._stays = stays
        self._let_in = let_in
        self._timeouts = timeouts
        self._log = log or logging.getLogger("fedoptima.device")
        self._clock = RunClock()
        self._disk = Disk(state.path.parent, self._log)
        records = state.path.with_suffix(".records")
        self._spool = Spool(records, self.name, self._clock, self._disk)
        self._process = secrets.token_hex(8)
        self._let_in_with = b""  # the certificate
        self._node: DeviceNode | None = None
        self._compute: Compute | None = None
        self._backoff = Backoff(
            timeouts.retry_first, timeouts.retry_longest, timeouts.retry_longest_after_loss
        )

    async def run(self) -> Halt:
        """Until the server says that it is over, or this device cannot go on."""
        try:
            while True:
                try:
                    return await self._connect()
                except (ConnectionLost, grpc.RpcError) as error:
                    self._backoff.lost()
                    why = await self._judge(error)
                offline, left = self._backoff.offline, self._left
                if left <= 0:
                    raise Unreachable(f"no server at {self._server} for {offline:.0f} s: {why}")
                delay = min(self._backoff.wait(), left)  # then once more
                self._log.warning(
                    "no connection to %s (%s); trying again in %.1f s", self._server, why, delay
                )
                await asyncio.sleep(delay)
        except _Over as over:
            return Halt(str(over))
        finally:
            if self._node is not None:
                self._node.save()
                self._node.close()
            if self._compute is not None:
                self._compute.close()
            self._spool.close()

    @property
    def _left(self) -> float:
        """Seconds until this device gives up."""
        after = self._give_up_after
        return math.inf if after is None else after - self._backoff.offline

    @property
    def _patience(self) -> float:
        """With an attempt to connect: the last one must not take much longer than was said."""
        return min(self._timeouts.handshake, max(self._left, _LAST_ATTEMPT))

    # ---- one connection ----------------------------------------------------------------------

    async def _connect(self) -> Halt:
        async with self._channel() as channel:
            call = channel.stream_stream(
                PATH, request_serializer=serialize, response_deserializer=deserialize
            )()
            link = DeviceLink(
                call,
                limit=_LARGEST,
                clock=self._clock,
                timeouts=self._timeouts,
                up=_pace(self._pace.up),
                down=_pace(self._pace.down),
            )
            try:
                node = await self._introduce(link)
                node.connected(link)
                await link.last(node)
                return node.outcome.result()
            finally:
                if self._node is not None:
                    self._node.disconnected(link)
                await link.close()

    async def _introduce(self, link: DeviceLink) -> DeviceNode:
        node = self._node
        hello = wire.Hello(
            schema=SCHEMA,
            name=self.name,
            process=self._process,
            version=__version__,
            last_session=node.last_session if node else 0,
            run=node.run if node else "",
            inline=INLINE_BYTES,
        )
        welcome = await link.introduce(hello, self._patience)
        self._backoff.connected()
        self._let_in = True
        if self._tls is not None:
            with suppress(OSError):  # missing while it is renewed
                self._let_in_with = self._tls.cert.read_bytes()
        others = mixture(welcome)
        self._log.info("connected to %s%s", self._server, f" ({others})" if others else "")
        if node is None or node.run != welcome.run:
            node = await self._begin(link, welcome)
        else:
            node.telemetry.connected(welcome.records)
        link.node = node
        return node

    async def _begin(self, link: DeviceLink, welcome: wire.Welcome) -> DeviceNode:
        """Everything a run needs that this process has not worked for yet."""
        if self._node is not None:
            self._log.info("the server began another run: this device starts over, too")
            self._node.close()
            self._node = None
        try:
            workplace, compute, speed = await self._prepare(welcome.recipe)
        except Exception as error:
            others = mixture(welcome)  # the likeliest reason, then
            await link.give_up(describe(error) + (f" ({others})" if others else ""))
            if others and isinstance(error, FedOptimaError):
                raise Refused(f"{error}\n{others}: install the same version on both") from error
            raise
        uplink = self._pace.up or await link.measure_uplink()
        disk = self._disk
        disk.say = lambda _: None  # until there is a node to note it
        kept = self._state.begin_incarnation(welcome.run, records=welcome.records, disk=disk)
        core = DeviceCore(
            samples=workplace.samples,
            flops_per_second=speed,
            bytes_per_second=uplink,
            incarnation=kept.incarnation,
            step=kept.step,
        )
        self._log.info(
            "%d samples, %.2f GFLOP/s, uplink %.1f Mbit/s",
            workplace.samples,
            speed / 1e9,
            uplink * 8 / 1e6,
        )
        self._node = node = DeviceNode(
            self.name,
            core,
            workplace.engine,
            compute,
            self._clock,
            run=welcome.run,
            state=self._state,
            disk=disk,
            telemetry=Telemetry(welcome.records, welcome.run, self._spool),
            log=self._log,
        )
        node.observers.append(DeviceLog(self._log).observe)
        disk.say = node.note
        if disk.trouble is not None:
            node.note(disk.trouble)
        return node

    async def _prepare(self, recipe: str) -> tuple[Workplace, Compute, float]:
        compute = self._compute = self._compute or Compute(self.name)
        workplace = await compute.do(lambda: self._build(recipe))
        await compute.do(lambda: prepare_thread(workplace.threads))
        return workplace, compute, await compute.do(workplace.measure_speed)

    def _channel(self) -> Any:
        options = client_options(self._timeouts)
        if self._tls is None:
            return grpc.aio.insecure_channel(str(self._server), options=options)
        try:
            credentials = self._tls.credentials()  # read again each time: they may be renewed
        except OSError as error:  # and may be missing while that is done
            raise ConnectionLost(f"{error.filename}: {error.strerror}") from error
        return grpc.aio.secure_channel(str(self._server), credentials, options=options)

    # ---- when it fails -----------------------------------------------------------------------

    async def _judge(self, error: Exception) -> str:
        """Why the connection failed; raises if another try would fail as well."""
        if not isinstance(error, grpc.RpcError):
            return printable(str(error))
        code, details = error.code(), printable(str(error.details() or ""), _MOST_DETAILS)
        if code is _OVER:
            raise _Over(details)
        if code in _FINAL:
            raise Refused(f"{self._server} refused this device: {details}") from error
        found = await asyncio.to_thread(
            diagnose,
            self._server,
            self._tls,
            let_in_with=self._let_in_with,
            timeout=self._patience,
        )
        if found is None and _NO_HTTP2 in details:
            return "not a fedoptima server: it speaks another protocol; check the port"
        if found is None:
            return details.rpartition(_NOT_CONNECTED)[2] or code.name
        if self._stays and self._let_in:
            return found
        raise Refused(found) from error


class _Over(Exception):
    """The run ended while this device was away."""


def _pace(bytes_per_second: float | None) -> LinkPace | None:
    return None if bytes_per_second is None else LinkPace(bytes_per_second)
