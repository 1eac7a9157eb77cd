"""Finished runs in a few small files: figures, a thinned curve, and how each was made.

A folder has a file for each workload and kind, ``a_image-dry.json``, with one line for each run.
Folders of several machines are put together by reading them all; a run is known by its id.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from fedoptima.comparison.cases import Case
from fedoptima.comparison.rows import Figures, Moment, Run, read_run
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.run_directory import make_folder
from fedoptima.reproduction.catalogue import Kind
from fedoptima.reproduction.planned import Planned
from fedoptima.trace.plain_files import read_plain
from fedoptima.trace.run_folder import write_whole

MOST_POINTS = 60  # of a curve, spread evenly
_NEAR = 0.03  # below the best accuracy
_OFTEN_EMPTY = ("split", "split_after", "reason", "trace_digest", "wall_seconds", "candidates")


@dataclass(frozen=True)
class Made:
    """How runs came about."""

    command: str
    commit: str
    date: str
    machine: str
    versions: str


def counted_origins(records: Iterable[Record]) -> list[tuple[Made, int]]:
    """How many of the records came about in each way, the oldest first."""
    counts = Counter(record.made for record in records)
    return sorted(counts.items(), key=lambda item: (item[0].date, item[0].command))


@dataclass(frozen=True)
class Record:
    id: str
    workload: str
    kind: Kind
    method: str
    settings: Mapping[str, object]
    seed: int
    figures: Mapping[str, float | None]  # those of `comparison.rows.Figures`; of a plan its own
    curve: Sequence[tuple[float, float, float | None]]  # seconds, epochs, accuracy
    made: Made
    split: int = 0
    split_after: str = ""
    reason: str = ""
    trace_digest: str = ""
    wall_seconds: float | None = None
    candidates: Sequence[tuple[str, float, float]] = field(default_factory=tuple)  # of a plan

    @property
    def case(self) -> Case:
        return Case(self.method, tuple(self.settings.items()))

    @property
    def run(self) -> Run:
        """As a comparison has it."""
        known = {name: self.figures.get(name) for name in (f.name for f in fields(Figures))}
        return Run(
            self.method,
            self.seed,
            figures=Figures(**known) if self.kind != "plan" else None,  # type: ignore[arg-type]
            curve=tuple(Moment(*point) for point in self.curve),
            settings=self.settings,
        )


def record_of(
    planned: Planned, summary: Mapping[str, Any], made: Made, wall: float | None
) -> Record:
    """From a run's summary.json."""
    case = planned.case
    run = read_run(case, planned.seed, summary)
    assert run.figures is not None
    return Record(
        **_identity(planned),
        figures={name: _short(value) for name, value in asdict(run.figures).items()},
        curve=thinned([(p.seconds, p.epochs, p.accuracy) for p in run.curve]),
        made=made,
        split=summary["split"],
        split_after=summary["split_after"],
        reason=summary["reason"],
        trace_digest=run.trace_digest,
        wall_seconds=None if wall is None else round(wall, 1),
    )


def _identity(planned: Planned) -> dict[str, Any]:
    case = planned.case
    return {
        "id": planned.id,
        "workload": planned.workload,
        "kind": planned.kind,
        "method": case.method,
        "settings": dict(case.settings),
        "seed": planned.seed,
    }


def plan_record(
    planned: Planned,
    made: Made,
    *,
    seconds: float,
    split: tuple[int, str],
    candidates: Sequence[tuple[str, float, float]],
) -> Record:
    return Record(
        **_identity(planned),
        figures={"startup": round(seconds, 3)},
        curve=(),
        made=made,
        split=split[0],
        split_after=split[1],
        candidates=tuple((name, _short(a), _short(b)) for name, a, b in candidates),
    )


Point = tuple[float, float, float | None]


def thinned(curve: Sequence[Point]) -> list[Point]:
    """Evenly spread; near the best accuracy, where times are taken, every new best is kept."""
    points = [(round(s, 3), round(e, 3), round(a, 5)) for s, e, a in curve if a is not None]
    if len(points) <= MOST_POINTS:
        return list(points)
    step = (len(points) - 1) / (MOST_POINTS - 1)
    kept = {round(index * step) for index in range(MOST_POINTS)}
    highest = max(accuracy for _, _, accuracy in points)
    best = 0.0
    for index, (_, _, accuracy) in enumerate(points):
        if accuracy > max(best, highest - _NEAR):
            kept.add(index)
        best = max(best, accuracy)
    return [points[index] for index in sorted(kept)]


def _short(number: Any) -> Any:
    return float(f"{number:.6g}") if isinstance(number, float) else number


class Recorded(Protocol):
    def get(self, run: str) -> Record | None: ...


class Records:
    """Those of a folder, or of several. Whatever is added is on disk at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, Record] = read_records(folder) if folder.is_dir() else {}

    def __contains__(self, run: str) -> bool:
        return run in self._found

    def __len__(self) -> int:
        return len(self._found)

    def get(self, run: str) -> Record | None:
        return self._found.get(run)

    def add(self, *records: Record) -> None:
        make_folder(self.folder)
        self._found |= {record.id: record for record in records}
        for name in sorted({_file_of(record) for record in records}):
            group = [record for record in self._found.values() if _file_of(record) == name]
            write_whole(self.folder / name, _text(group))

    def keep(self, runs: Container[str]) -> int:
        """Forget all others: recipes have changed since they were made; how many there were."""
        others = [record for record in self._found.values() if record.id not in runs]
        for record in others:
            del self._found[record.id]
        for name in {_file_of(record) for record in others}:
            group = [record for record in self._found.values() if _file_of(record) == name]
            if group:
                write_whole(self.folder / name, _text(group))
            else:
                (self.folder / name).unlink()
        return len(others)

    def merge(self, folder: Path) -> int:
        """Take over what is not here yet; how many there were."""
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; nothing can be merged from it")
        new = [record for run, record in read_records(folder).items() if run not in self]
        self.add(*new)
        return len(new)


def read_records(folder: Path) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for path in sorted(folder.glob("*-*.json")):
        try:
            plain = json.loads(read_plain(path))
            made = [Made(**each) for each in plain["made"]]
            records = [_record(run, made) for run in plain["runs"]]
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise ConfigError(
                f"{path}: cannot be read ({error}); remove it, and its runs are made again"
            ) from error
        found |= {record.id: record for record in records}
    return found


def _record(plain: Mapping[str, Any], made: Sequence[Made]) -> Record:
    known = {each.name for each in fields(Record)}
    given = {key: value for key, value in plain.items() if key in known}
    curve = [(point[0], point[1], point[2]) for point in plain["curve"]]
    candidates = tuple((row[0], row[1], row[2]) for row in plain.get("candidates", ()))
    changed = {"made": made[plain["made"]], "curve": curve, "candidates": candidates}
    return Record(**{**given, **changed})


def _file_of(record: Record) -> str:
    return f"{record.workload}-{record.kind}.json"


def _text(records: Iterable[Record]) -> str:
    ordered = sorted(records, key=lambda record: (record.case.label, record.seed, record.id))
    made = list(dict.fromkeys(json.dumps(asdict(record.made)) for record in ordered))
    lines = []
    for record in ordered:
        plain = {**asdict(record), "made": made.index(json.dumps(asdict(record.made)))}
        kept = {key: v for key, v in plain.items() if v or key not in _OFTEN_EMPTY}
        lines.append(json.dumps(kept))
    head = ",\n  ".join(made)
    body = ",\n  ".join(lines)
    return f'{{\n "made": [\n  {head}\n ],\n "runs": [\n  {body}\n ]\n}}\n'
