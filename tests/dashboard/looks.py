"""What a reader says of a run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedoptima.dashboard.folder import Runs
from fedoptima.dashboard.reader import RunReader, Snapshot


def reader(path: Path) -> RunReader:
    runs = Runs.at(path)
    return RunReader(runs, runs.all()[0])


def look(reading: RunReader, *spans: int) -> Snapshot:
    snapshot = reading.look(set(spans))
    while snapshot.behind:
        snapshot = reading.look(set(spans))
    return snapshot


def state(path: Path) -> dict[str, Any]:
    return look(reader(path)).sections


def usage(sections: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    rows = sections["rows"]
    return {r["name"]: (r["busy"], r["idle_1"], r["idle_2"]) for r in rows if "busy" in r}


def row(reading: RunReader, name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = look(reading).sections["rows"]  # type: ignore[assignment]
    return next(row for row in rows if row["name"] == name)
