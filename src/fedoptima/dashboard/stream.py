"""Server-sent events: a run's sections, each sent again only when it has changed.

Few rows fit on a page and into a message. So every viewer names what it wants to see, and gets
the first rows and lanes of that.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from fedoptima.core.types import SERVER
from fedoptima.dashboard import lanes
from fedoptima.dashboard.reader import Snapshot
from fedoptima.dashboard.watch import Watch

MOST_ROWS = 40  # of devices
_RETRY = "retry: 2000\n\n"  # milliseconds until a browser that lost us tries again


@dataclass(frozen=True)
class Wish:
    filter: str = ""
    span: int = lanes.SPANS[0]

    @classmethod
    def of(cls, query: Mapping[str, str], *, over: bool) -> Wish:
        """Of a run that is over, the last minutes are worth no more than the others."""
        known = {str(span): span for span in lanes.SPANS}
        usual = lanes.WHOLE if over else lanes.SPANS[0]
        return cls(query.get("filter", "")[:80], known.get(query.get("span", ""), usual))

    def cut(self, snapshot: Snapshot) -> dict[str, object]:
        """What of the snapshot is shown."""
        server, *devices = cast(list[dict[str, object]], snapshot.sections["rows"])
        wanted = [row for row in devices if self._matches(row)]
        if len(wanted) > MOST_ROWS:  # those in trouble first; else the order stays
            wanted.sort(key=lambda row: bool(row["well"]))
        shown = wanted[:MOST_ROWS]
        cut = {
            **snapshot.sections,
            "rows": {
                "shown": [server, *shown],
                "matching": len(wanted),
                "all": len(devices),
                "not_well": sum(not row["well"] for row in devices),
            },
        }
        if self.span in snapshot.timelines:
            names = [SERVER, *(str(row["name"]) for row in shown)]
            timeline = snapshot.timelines[self.span]
            drawn = lanes.plain(timeline, names, snapshot.began)
            cut["lanes"] = {"span": self.span, **drawn}
        return cut

    def _matches(self, row: Mapping[str, object]) -> bool:
        text = f"{row['name']} {row['state']}".casefold()
        return all(word in text for word in self.filter.casefold().split())


async def messages(watch: Watch, wish: Wish) -> AsyncGenerator[str, None]:
    """One about every second: nothing but ``{}`` says that nothing has changed."""
    yield _RETRY
    sent: dict[str, str] = {}
    async with aclosing(watch.snapshots(wish.span)) as snapshots:
        async for snapshot in snapshots:
            texts = {name: to_json(part) for name, part in wish.cut(snapshot).items()}
            news = {name: text for name, text in texts.items() if sent.get(name) != text}
            sent |= news
            parts = ",".join(f'"{name}":{text}' for name, text in news.items())
            yield f"data: {{{parts}}}\n\n"


def to_json(part: object) -> str:
    return json.dumps(part, separators=(",", ":"), allow_nan=False)
