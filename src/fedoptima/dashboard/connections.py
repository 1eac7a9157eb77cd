"""The page's connections: how many there may be, and how long one may keep the page waiting.

uvicorn waits for ever for a request that never comes to its end, and for a browser that does not
read on: a few hundred of them would take every open file of this process.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True)
class Patience:
    request: float = 10.0  # seconds for all of a request's headers
    reading: float = 30.0  # seconds for a browser to read on
    connections: int = 256  # at a time


def protocol(patience: Patience) -> type[H11Protocol]:
    class LimitedConnection(H11Protocol):
        _began = 0.0
        _waiting: asyncio.TimerHandle | None = None  # for a request
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._began = time.monotonic()
            if len(self.connections) >= patience.connections and not self._make_room():
                self.transport = transport
                transport.abort()
                return
            super().connection_made(transport)
            self._wait_for_request()

        def _make_room(self) -> bool:
            """The oldest one that has asked for nothing goes; False: all of them have."""
            others = (c for c in self.connections if isinstance(c, LimitedConnection))
            silent = [c for c in others if not c.answering]
            if not silent:
                return False
            oldest = min(silent, key=lambda connection: connection._began)
            self.connections.discard(oldest)
            oldest.transport.abort()
            return True

        @property
        def answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.answering:
                self._waiting = _cancelled(self._waiting)
            elif self._waiting is None:
                self._wait_for_request()

        def _wait_for_request(self) -> None:
            self._waiting = self.loop.call_later(patience.request, self._give_up_waiting)

        def _give_up_waiting(self) -> None:
            self._waiting = None
            if not self.answering:
                self.transport.abort()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(patience.reading, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._unread = _cancelled(self._unread)

        def connection_lost(self, exc: Exception | None) -> None:
            self._waiting, self._unread = _cancelled(self._waiting), _cancelled(self._unread)
            super().connection_lost(exc)

    return LimitedConnection


def _cancelled(handle: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """No timer any more."""
    if handle is not None:
        handle.cancel()
    return None
