"""What a process uses, as Linux counts it: CPU time by thread, memory, open files."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """User and system, of all its threads, also of those that have ended."""
    return _cpu(Path(f"/proc/{pid}/stat"))[1]


def cpu_by_thread(pid: int) -> dict[str, float]:
    """Threads of the same name together; the first one is where the event loop runs."""
    found: dict[str, float] = {}
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            name, seconds = _cpu(stat)
        except OSError:  # it has ended
            continue
        own = "event loop" if stat.parent.name == str(pid) else name
        found[own] = found.get(own, 0.0) + seconds
    return found


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 2**20


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def growth(readings: list[tuple[float, float]]) -> float:
    """MiB a minute: the slope of a straight line through (seconds, MiB)."""
    count = len(readings)
    mean_at = sum(at for at, _ in readings) / count
    mean = sum(mib for _, mib in readings) / count
    over = sum((at - mean_at) * (mib - mean) for at, mib in readings)
    return 60 * over / sum((at - mean_at) ** 2 for at, _ in readings)


def _cpu(stat: Path) -> tuple[str, float]:
    text = stat.read_text()
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return name, (int(fields[11]) + int(fields[12])) / _TICKS
