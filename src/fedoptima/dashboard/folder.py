"""The runs in a folder, as far as they are known without reading their traces."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedoptima.analysis.curve import USUAL
from fedoptima.analysis.quality import Quality, quality
from fedoptima.core.errors import ConfigError
from fedoptima.core.text import cut
from fedoptima.trace.description import RunDescription, read_config
from fedoptima.trace.plain_files import read_plain
from fedoptima.trace.run_folder import RunFiles

MOST_RUNS = 300
SILENT = 20.0  # seconds without a new record until a run is no longer said to be going on
_DEPTH = 3  # a comparison is a folder of runs; so may be a folder of comparisons

_SHOWN = ("reason", "seconds", "epochs")

JsonObject = Mapping[str, object]


@dataclass(frozen=True)
class RunFolder:
    name: str  # as it is asked for: its path below the folder that is shown
    path: Path

    @property
    def files(self) -> RunFiles:
        return RunFiles(self.path)

    def changed(self) -> float:
        """When the run was last heard of, in seconds since 1970; 0: never."""
        files = self.files
        for changing in ((files.disk_failing, files.trace), (files.config,)):
            times = []
            for file in changing:
                with suppress(OSError):
                    times.append(file.stat().st_mtime)
            if times:
                return max(times)
        return 0.0

    def disk_failing(self) -> str:
        """What its server says of its disk; empty: nothing."""
        file = self.files.disk_failing
        with suppress(OSError, ValueError):
            return read_plain(file).strip() or "the server cannot write"
        return ""

    def silent(self) -> float:
        """Seconds since then."""
        return max(0.0, time.time() - changed) if (changed := self.changed()) else 0.0

    def stopped(self) -> str:
        """When its user stopped it; empty: nobody did."""
        try:
            return cut(read_plain(self.files.stopped).strip())
        except (OSError, ValueError):
            return ""

    def description(self) -> RunDescription | None:
        """None: not written yet, or damaged."""
        try:
            return read_config(self.files.config)
        except ConfigError:
            return None

    def summary(self) -> JsonObject:
        """What a list shows of it; all else is in the trace."""
        summary = _read(self.files.summary)
        shown = {key: summary[key] for key in _SHOWN if key in summary}
        return (
            {**shown, "quality": plain_quality(_quality(summary.get("curve")))} if summary else {}
        )


@dataclass
class Runs:
    """``single``: the folder is a run's own, perhaps of one that is about to begin."""

    root: Path
    single: bool = False
    # These do not change.
    _finished: dict[Path, tuple[RunDescription | None, JsonObject]] = field(default_factory=dict)

    @classmethod
    def at(cls, path: Path) -> Runs:
        if not path.is_dir():
            raise ConfigError(f"{path}: no such folder; name a run's, or one that holds runs")
        return cls(path, single=RunFiles(path).begun)

    def all(self) -> list[RunFolder]:
        """The newest first."""
        if self.single:
            return [RunFolder(self.root.resolve().name, self.root)]
        found = [RunFolder(str(p.relative_to(self.root)), p) for p in _below(self.root, _DEPTH)]
        return sorted(found, key=RunFolder.silent)[:MOST_RUNS]

    def find(self, name: str) -> RunFolder | None:
        """A name is only compared, never made into a path."""
        return next((run for run in self.all() if run.name == name), None)

    def read(self, run: RunFolder) -> tuple[RunDescription | None, JsonObject]:
        """What it is, and its summary once it is over."""
        kept = self._finished.get(run.path)
        if kept is None:
            kept = run.description(), run.summary()
            if kept[1]:
                self._finished[run.path] = kept
        return kept


def _below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        inside = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:  # gone, or not for us to see
        return
    for entry in inside:
        path = Path(entry.path)
        if RunFiles(path).begun:
            yield path
        elif depth > 1:
            yield from _below(path, depth - 1)


def plain_quality(found: Quality | None) -> JsonObject | None:
    """What is not finite has no place in JSON."""
    return asdict(found) if found and math.isfinite(found.last + found.best) else None


def _quality(curve: object) -> Quality | None:
    points = (
        [point for point in curve if isinstance(point, dict)] if isinstance(curve, list) else []
    )
    found = {name: [point.get(name) for point in points] for name in USUAL}
    return quality(
        {name: [v for v in values if isinstance(v, int | float)] for name, values in found.items()}
    )


def _read(path: Path) -> JsonObject:
    try:
        plain = json.loads(read_plain(path))
    except (OSError, ValueError, RecursionError):  # not there yet, or half written
        return {}
    return plain if isinstance(plain, dict) else {}
