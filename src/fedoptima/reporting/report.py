"""Runs as a report: `report(["runs/a"])` writes one HTML file and returns what it says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from fedoptima.analysis.findings import compare, describe
from fedoptima.analysis.run_view import RunView, view_of
from fedoptima.comparison.cases import Case
from fedoptima.comparison.folder import read_about
from fedoptima.comparison.spec import REFERENCE
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.text import short_name
from fedoptima.display.views import counting
from fedoptima.display.wording import speaks_python
from fedoptima.named_code import AllowedCode, allow
from fedoptima.prediction.advice import Advice, advise
from fedoptima.reporting.report_page import Page, plotly_source, render
from fedoptima.trace.description import RunDescription
from fedoptima.trace.reader import read_description, read_trace
from fedoptima.trace.record import RecordProgress
from fedoptima.trace.run_folder import RunFiles
from fedoptima.version import __version__


@dataclass(frozen=True)
class Report:
    path: Path
    nbytes: int
    views: tuple[RunView, ...]
    advice: Advice | None  # None: not asked for
    advised: str  # the label of the run that the advice is for
    replaced: bool = False  # another file of that name

    @property
    def sentences(self) -> dict[str, list[str]]:
        return {view.label: describe(view) for view in self.views}

    def to_json(self) -> str:
        plain = {
            "path": str(self.path),
            "bytes": self.nbytes,
            "replaced": self.replaced,
            "comparison": compare(self.views),
            "advice": {"run": self.advised, **self.advice.plain()} if self.advice else None,
            "runs": [
                {
                    "label": view.label,
                    "method": view.method,
                    "ended": view.halt.reason if view.halt else None,
                    "records": view.records,
                    "sentences": describe(view),
                    **view.summary.plain(),
                }
                for view in self.views
            ],
        }
        return json.dumps(plain, indent=1)


@dataclass(frozen=True)
class _Source:
    trace: Path
    run: RunDescription

    @property
    def folder(self) -> Path:
        return self.trace.parent


@speaks_python()
def report(
    runs: str | Path | Sequence[str | Path],
    *,
    out: str | Path = "report.html",
    advice: bool = True,
    allow_modules: Sequence[str] = (),
    progress: RecordProgress | bool | None = None,
) -> Report:
    """Write one HTML file about one or several runs: where the time went, as figures and text.

    Reading a run does not execute code that it names: see `allow_modules`.

    Args:
        runs: Folders of runs or of comparisons, finished or not.
        out: The file.
        advice: Also simulate the recipe with changes, to see what would help.
        allow_modules: A recipe that names code of its own (`"package.module:function"`) is
            simulated for advice only if its package or module is among these.
        progress: Show it on stderr; by default where that is a terminal. Or a function, which is
            called with what is done and the number of records.

    Returns:
        Where the file is, and what it says.

    Raises:
        ConfigError: There is no run in a folder, or a package is missing; the message says which.

    Example:
        ```python
        made = fedoptima.report(["runs/a", "runs/b"], out="report.html")
        print(made.sentences)
        ```
    """
    with counting(progress) as count:
        return _report(runs, Path(out), advice, allow(allow_modules), count)


def _report(
    runs: str | Path | Sequence[str | Path],
    path: Path,
    advice: bool,
    code: AllowedCode,
    progress: RecordProgress,
) -> Report:
    runs = [runs] if isinstance(runs, str | Path) else runs
    _check_place(path)
    plotly_source()  # missing packages, too, are better found before than after reading
    sources = [_Source(trace, read_description(trace)) for trace in find_traces(runs)]
    views = [
        view_of(label, source.run, read_trace(source.trace), partial(progress, f"reading {label}"))
        for source, label in zip(sources, _labels(sources), strict=True)
    ]
    chosen = next((i for i, view in enumerate(views) if view.method == REFERENCE), 0)
    found = None
    if advice:
        progress("looking for what would help", 0)
        found = _advice(sources[chosen], views[chosen], code)
    progress("drawing", 0)
    label = views[chosen].label
    paragraphs = found.paragraphs() if found else []
    if len(views) > 1 and paragraphs:
        paragraphs[0] = f"For {label}: {paragraphs[0]}"
    made = f"Made on {datetime.now(UTC):%Y-%m-%d} by fedoptima {__version__}."
    page = Page(_title(sources), made, paragraphs)
    text = render(page, views)
    replaced = path.exists()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); choose another with -o"
        ) from error
    return Report(path, len(text.encode()), tuple(views), found, label, replaced)


def find_traces(runs: Sequence[str | Path]) -> list[Path]:
    """Each run once, in the order given; a comparison's in its own order."""
    found: dict[Path, Path] = {}
    for given in map(Path, runs):
        for trace in _traces_of(given):
            found.setdefault(trace.resolve(), trace)
    return list(found.values())


def _traces_of(given: Path) -> list[Path]:
    if given.is_file():
        return [given]
    trace = RunFiles(given).trace
    if trace.is_file():
        return [trace]
    inside = _compared(given)
    if not inside:
        raise ConfigError(
            f"{given}: no run found here ({trace.name} is missing); give the folder of a run, of a "
            "comparison, or a trace"
        )
    return inside


def _compared(folder: Path) -> list[Path]:
    """A comparison's runs, the methods in its order; of any other folder, what lies in it."""
    if not (folder / "comparison.json").is_file():
        runs = sorted(folder.glob("*/"))
    else:
        about = read_about(folder)
        pairs = [(Case(method), seed) for seed in about.seeds for method in about.methods]
        runs = [folder / case.folder(seed) for case, seed in pairs]
    traces = [RunFiles(run).trace for run in runs]
    return [trace for trace in traces if trace.is_file()]


def _advice(source: _Source, view: RunView, code: AllowedCode) -> Advice:
    try:
        recipe = validate(Recipe, dict(source.run.recipe), str(source.trace))
    except ConfigError as error:  # of another version: all else can be shown
        return Advice(f"the recipe cannot be rerun here ({error})")
    return advise(recipe, view, code=code)


def _labels(sources: Sequence[_Source]) -> list[str]:
    """As short as they can be and still differ: the method, its seed, its recipe, its folder."""

    def ladder() -> Iterator[list[str]]:
        methods = [short_name(s.run.method) for s in sources]
        seeded = [f"{m}, seed {s.run.seed}" for m, s in zip(methods, sources, strict=True)]
        yield methods
        yield seeded
        yield [f"{s.run.name}, {text}" for text, s in zip(seeded, sources, strict=True)]
        yield [s.folder.resolve().name for s in sources]

    for labels in ladder():
        if len(set(labels)) == len(labels):
            return labels
    return [str(s.folder) for s in sources]


def _title(sources: Sequence[_Source]) -> str:
    if len(sources) == 1:
        return sources[0].run.title
    names = Counter(source.run.name for source in sources)
    which = next(iter(names)) if len(names) == 1 else f"{len(names)} recipes"
    return f"{which}: {len(sources)} runs"


def _check_place(path: Path) -> None:
    """Before traces are read for minutes."""
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give a file, e.g. -o {path / 'report.html'}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}; make it, or choose another")
