"""A map of who is fastest where, as SVG: a panel for each device speed and latency."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from fedoptima.comparison.dry_pace import Conditions
from fedoptima.comparison.regions import number
from fedoptima.comparison.sensitivity import Sensitivity
from fedoptima.reporting.palette import METHODS

_WIDTH, _HEIGHT = 38, 22  # of a cell
_LEFT, _TOP = 92, 88
_GAP_X, _GAP_Y = 46, 52
_OTHERS = ("#F0E442", "#7F3C8D", "#882255", "#117733")  # methods without a colour of their own


def heat_map(found: Sensitivity) -> str:
    """Colour: the fastest method. Number: the next best time over FedOptima's (the reference's), so
    that what is below 1 says how far it is behind."""
    grid, own = found.grid, found.reference
    columns, rows = len(grid.server_gflops), len(grid.mbps)
    wide, high = columns * _WIDTH + _GAP_X, rows * _HEIGHT + _GAP_Y
    width = _LEFT + len(grid.latency_ms) * wide
    height = _TOP + len(grid.devices) * high + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="10" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        _text(10, 18, f"{found.name}: the fastest method, by the time of a useful sample", 14),
        _text(
            10,
            34,
            f"The number is the best other method's time over {own}'s: above 1, {own} is first. "
            "Across: server, GFLOP/s. Down: links, Mbps.",
        ),
        *_legend(found),
    ]
    for across, latency in enumerate(grid.latency_ms):
        for down, devices in enumerate(reversed(grid.devices)):
            x, y = _LEFT + across * wide, _TOP + down * high
            parts += _panel(found, devices, latency, x, y)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(found: Sensitivity) -> Iterator[str]:
    winners = {found.winner(cell) for cell in found.times}
    x = 10
    for method in (m for m in found.methods if m in winners):
        yield f'<rect x="{x}" y="42" width="12" height="12" fill="{_colour(found, method)}"/>'
        yield _text(x + 16, 52, method)
        x += 30 + 7 * len(method)


def _panel(found: Sensitivity, devices: float, latency: float, x: int, y: int) -> Iterator[str]:
    grid = found.grid
    yield _text(x, y - 18, f"devices x {number(devices)}, latency {number(latency)} ms", 11)
    for across, server in enumerate(grid.server_gflops):
        yield _text(x + across * _WIDTH + 4, y - 4, number(server))
    for down, mbps in enumerate(grid.mbps):
        top = y + down * _HEIGHT
        yield _text(x - 24, top + 15, number(mbps))
        for across, server in enumerate(grid.server_gflops):
            cell = Conditions(devices, mbps, latency, server)
            if cell in found.times:
                yield from _cell(found, cell, x + across * _WIDTH, top)


def _cell(found: Sensitivity, cell: Conditions, x: int, y: int) -> Iterator[str]:
    winner, lead = found.winner(cell), found.lead(cell)
    times = ", ".join(
        f"{method} {1000 * seconds:.3g} ms"
        for method, seconds in found.times[cell].items()
        if seconds is not None
    )
    yield (
        f'<rect x="{x}" y="{y}" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" '
        f'fill="{_colour(found, winner)}" fill-opacity="0.55"><title>{escape(times)}</title></rect>'
    )
    if lead is not None:
        yield _text(x + 7, y + 15, f"{lead:.2f}" if lead < 10 else f"{lead:.0f}")


def _colour(found: Sensitivity, method: str) -> str:
    if method in METHODS:
        return METHODS[method].colour
    return _OTHERS[found.methods.index(method) % len(_OTHERS)]


def _text(x: int, y: int, text: str, size: int | None = None) -> str:
    given = f' font-size="{size}"' if size else ""
    return f'<text x="{x}" y="{y}"{given}>{escape(text)}</text>'
