"""What is known of records that could not be written: how many, and which messages they named.

Replay needs the messages: what devices record as sent and received has to fit those after the gap.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

from fedoptima.core.effects import Run, Send
from fedoptima.core.errors import ConfigError
from fedoptima.core.events import Gap, Lane, Received
from fedoptima.core.messages import is_bulk
from fedoptima.core.serialization import thaw
from fedoptima.core.server import ServerCore
from fedoptima.trace.record import UNREADABLE, Record


def core_after(gap: Gap) -> ServerCore | None:
    """The server as it was at the end of a gap; None: it is not known, or of a user's classes."""
    try:
        found = thaw(json.loads(gap.core)) if gap.core else None
    except (*UNREADABLE, ConfigError):
        return None
    return found if isinstance(found, ServerCore) else None


class GapCount:
    """Of a server's records."""

    def __init__(self, known: Gap | None = None) -> None:
        """``known``: what was missing already."""
        self.records = known.records if known else 0
        self._since = known.since if known else None
        self._mail: Counter[Lane] = Counter(dict(known.mail) if known else {})

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            record = Record.from_line(line)
            if self._since is None:
                self._since = record.at
            self.records += 1
            self._mail.update(_lanes(record))

    def gap(self, running: Run | None = None, core: str = "") -> Gap:
        return Gap(self.records, self._since or 0.0, tuple(self._mail.items()), running, core)


def _lanes(record: Record) -> Iterator[Lane]:
    if isinstance(record.event, Received):
        yield record.event.sender, record.event.session, True, is_bulk(record.event.message)
    for effect in record.effects:
        if isinstance(effect, Send):
            yield effect.to, effect.session, False, is_bulk(effect.message)
