"""After a server's restart: devices come back one by one, and a barrier must not notice.

A barrier waits for those who are there. It would open for the first device that is back, and merge
a round of one. So under such a method the core hears of nobody until all who were there have spoken
again, or until patience is over; then of all at once, in the order of their names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.messages import Message
from fedoptima.core.types import NodeId
from fedoptima.runtime.server.session import Session

Release = Callable[[Session, list[Message]], None]

_MOST = 3  # messages of a device that nobody has answered yet: Join, ModelUpdate, Failed


class Homecoming:
    def __init__(self, expected: Iterable[NodeId], patience: float, release: Release) -> None:
        self._expected = set(expected)
        self._release = release
        self._back: dict[NodeId, tuple[Session, list[Message]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        if self._expected:
            self._timer = asyncio.get_running_loop().call_later(patience, self._all_in)

    @property
    def over(self) -> bool:
        return self._timer is None

    def opened(self, session: Session) -> None:
        self._back[session.device] = (session, [])

    def closed(self, session: Session) -> None:
        if self.holds(session):
            del self._back[session.device]

    def holds(self, session: Session) -> bool:
        return session.device in self._back and self._back[session.device][0] is session

    def received(self, session: Session, message: Message) -> None:
        messages = self._back[session.device][1]
        if len(messages) == _MOST:
            raise ProtocolViolation(f"{session.device} does not wait to be answered")
        messages.append(message)
        if all(device in self._back and self._back[device][1] for device in self._expected):
            self._all_in()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _all_in(self) -> None:
        self.close()
        back, self._back = self._back, {}
        for _, (session, messages) in sorted(back.items()):
            self._release(session, messages)
