"""The live picture of a run over the network: one row per node, at most 100 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedoptima.analysis.formatting import counted, duration, percent, roughly
from fedoptima.display.console import plain_table
from fedoptima.display.progress import bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedoptima.analysis.idle_time import Usage
    from fedoptima.cli.views.fleet_state import DeviceRow, FleetState

MOST_ROWS = 30  # of devices
_MOST_ERRORS = 5
_NAME = 18  # columns; longer names are cut
_WIDTHS = {1: 15, 6: 8, 7: 7, 8: 7, 9: 6}  # of the columns that change
_FRAME = 5  # lines around the devices' rows: title, bar, blank, headings, the server


def picture(title: str, state: FleetState, *, height: int) -> RenderableType:
    """``height``: lines of the terminal; rows that do not fit are summed up."""
    head: list[RenderableType] = [Text(title, "bold", no_wrap=True, overflow="ellipsis")]
    if state.waiting:
        head.append(Text(state.waiting))
    else:
        course = state.course
        done = (course.done, duration(course.seconds), course.quality_text)
        head.append(bar("training", course.share, ", ".join(filter(None, done))))
    errors = [
        Text(error.replace("\n", " "), "red", no_wrap=True, overflow="ellipsis")
        for error in state.errors[-_MOST_ERRORS:]
    ]
    room = height - _FRAME - len(errors) - 1
    most = max(1, min(MOST_ROWS, room - 1 if len(state.devices) > room else room))
    return Group(*head, Text(), _table(state, most), *errors)


def _table(state: FleetState, most: int) -> Table:
    headings = ("", "state", "GFLOP/s", "up Mbit/s", "version", "behind", state.what_is_used)
    table = plain_table(*headings, "busy", "idle", "seen", left=2)
    table.padding = (0, 1, 0, 0)  # there are many columns
    table.columns[0].max_width = _NAME
    for column in table.columns[:2]:
        column.no_wrap, column.overflow = True, "ellipsis"
    for index, width in _WIDTHS.items():  # or the table would change its shape all the time
        table.columns[index].min_width = width
    figures = (str(state.version), "", str(state.used), *_shares(state.usage))
    table.add_row("server", state.server, "", "", *figures, "")
    for row in state.devices[:most]:
        table.add_row(*_cells(row), style="" if row.well else "red")
    rest = state.devices[most:]
    if rest:
        table.add_row(*_summed_up(rest), style="dim")
    return table


def _cells(row: DeviceRow) -> tuple[str, ...]:
    version = "" if row.version is None else str(row.version)
    behind = "" if row.behind is None else str(row.behind)
    figures = (row.gflops, row.mbps, version, behind, str(row.used))
    return (row.name, row.state, *figures, *_shares(row.usage), roughly(row.unseen))


def _summed_up(rows: Sequence[DeviceRow]) -> tuple[str, ...]:
    doing = max({row.state for row in rows}, key=[row.state for row in rows].count)
    usages = [row.usage for row in rows if row.usage is not None]
    busy, span = sum(use.busy for use in usages), sum(use.span for use in usages)
    shares = (percent(busy / span), percent(1 - busy / span)) if span else ("", "")
    used = str(sum(row.used for row in rows))
    return (f"{counted(len(rows), 'more device')}", f"mostly {doing}", *[""] * 4, used, *shares, "")


def _shares(usage: Usage | None) -> tuple[str, str]:
    if usage is None or not usage.span:
        return "", ""
    return percent(usage.utilisation), percent(1 - usage.utilisation)
