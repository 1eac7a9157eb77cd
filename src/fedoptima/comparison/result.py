"""The result of a comparison or sweep: its rows as one table, in cells, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedoptima.analysis.formatting import brief, counted
from fedoptima.comparison.cases import Case, shown
from fedoptima.comparison.retained import (
    KINDS,
    Retained,
    measures_retention,
    retention_of,
    retention_of_run,
)
from fedoptima.comparison.rows import ComparedRuns, Figures, Row
from fedoptima.comparison.spec import About
from fedoptima.display.sheets import as_figure, as_frame, as_html, as_text

Line = tuple[str, list[str]]  # a figure's name, then one cell per row

NONE = "-"
SPREAD = " ± "

_FIGURES = {  # attribute of `Figures`: name, scale
    "epochs": ("epochs of the run", 1.0),  # a round can overshoot the budget
    "seconds": ("time of the run, s", 1.0),
    "server_idle": ("server idle, s/epoch", 1.0),
    "server_idle_share": ("server idle, %", 100.0),
    "server_reused_share": ("server reused, %", 100.0),
    "device_idle_1": ("device idle I, s/epoch", 1.0),
    "device_idle_1_share": ("device idle I, %", 100.0),
    "device_idle_2": ("device idle II, s/epoch", 1.0),
    "device_idle_2_share": ("device idle II, %", 100.0),
    "useful_throughput": ("useful samples/s", 1.0),
    "device_throughput": ("device samples/s", 1.0),
    "server_throughput": ("server samples/s", 1.0),
    "reused_throughput": ("server samples/s, reused", 1.0),
    "bytes_up": ("MB up/epoch", 1e-6),
    "bytes_down": ("MB down/epoch", 1e-6),
    "server_memory": ("peak server MiB", 2.0**-20),
}
_REUSED = ("server_reused_share", "reused_throughput")  # only where a run has some

_CALLS = {"comparison": "compare(...)", "sweep": "sweep(...)"}

_NOTE = (
    "Times are on the simulated clock. Idle: the mean over devices; type I waits for a result of "
    "the other side, type II for a slower device (all of the server's is type I). Useful samples "
    "went through the whole network and were used; FedOptima's are those its server trained on."
)

_RETENTION = (
    "R(p) = T(p) / T(0): samples per second where devices leave with probability p, over those "
    "where none leaves and bandwidths vary as much."
)


@dataclass(frozen=True, repr=False)
class Comparison(ComparedRuns):
    """Several runs side by side: one row per method, or per method and settings in a sweep.

    It prints as a table; a notebook shows the curves, too.

    Example:
        ```python
        print(comparison)
        comparison.to_pandas()  # one row per run
        comparison.plot()  # one line per run, as a plotly figure
        ```
    """

    directory: Path | None = None

    def __str__(self) -> str:
        table = as_text(self._title, self._cells())
        return "\n".join([table, *notes(self), *(f"failed: {text}" for text in self.failures())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """In a notebook: the table, and the curves of all runs below it."""
        return as_html(self._title, self._cells(), *self._curves())

    def plot(self) -> Any:
        """The accuracy of every run over time, or its loss where the task has no accuracy.

        Returns:
            A `plotly.graph_objects.Figure`.

        Raises:
            ConfigError: plotly is missing; the message says how to install it.
        """
        return as_figure(self._title, *self._curves())

    def to_pandas(self) -> Any:
        """The figures of every run.

        Returns:
            A `pandas.DataFrame` with one row per run: method, settings, seed and figures.

        Raises:
            ConfigError: pandas is missing.
        """
        names, *records = as_records(self)
        return as_frame([str(name) for name in names], records)

    @property
    def _title(self) -> str:
        seeds = f"seed{'s' if len(self.about.seeds) > 1 else ''} " + ", ".join(
            map(str, self.about.seeds)
        )
        dry = " - only the timing" if self.about.dry else ""
        rows = counted(len(self.rows), "row" if self.about.vary else "method")
        return f"{self.name}: {rows}, {seeds}{dry}"

    def _cells(self) -> list[list[str]]:
        """Rows are columns here: their names are short, and those of the figures are not."""
        names = [Case(row.method, tuple(row.settings.items())).label for row in self.rows]
        return [["", *names], *([name, *cells] for name, cells in lines(self))]

    def _curves(self) -> tuple[dict[str, list[tuple[float, float]]], str]:
        """Of every run, over seconds; and what it is."""
        several, losses = len(self.about.seeds) > 1, self.shows_loss
        figure, scale = ("loss", 1.0) if losses else ("accuracy", 100.0)
        curves = {
            f"{run.label}, seed {run.seed}" if several else run.label: [
                (at.seconds, scale * value)
                for at in run.curve
                if (value := getattr(at, figure)) is not None
            ]
            for run in self.runs
        }
        return curves, "loss" if losses else "accuracy, %"

    def to_json(self) -> str:
        """Everything, as JSON."""
        plain = {
            "about": self.about.to_json(),
            "target": self.target,
            "reference": self.reference,
            "rows": [asdict(row) | self._retention(row) for row in self.rows],
            "runs": [{k: v for k, v in asdict(run).items() if k != "curve"} for run in self.runs],
        }
        return json.dumps(plain, indent=1)

    def _retention(self, row: Row) -> dict[str, object]:
        if not measures_retention(self):
            return {}
        kinds = retention_of(self, row).items()
        return {"retention": {kind: asdict(found) if found else None for kind, found in kinds}}

    def to_markdown(self) -> str:
        """The table, and all that is needed to repeat it."""
        return as_markdown(self)


def lines(comparison: ComparedRuns) -> list[Line]:
    """One line per figure; figures that no row has are left out."""
    return [(name, cells) for name, cells in _lines(comparison) if set(cells) != {NONE}]


def as_markdown(comparison: ComparedRuns) -> str:
    """The table with one row per case, then all that is needed to repeat it."""
    table, about = lines(comparison), comparison.about
    head = ["method", *about.vary, *(name for name, _ in table)]
    body = [
        [row.method, *setting_cells(comparison, row), *(cells[index] for _, cells in table)]
        for index, row in enumerate(comparison.rows)
    ]
    text = [
        f"# {about.kind.capitalize()}: {comparison.name}",
        "",
        _row(head),
        _row(["---"] + ["---:"] * (len(head) - 1)),
    ]
    text += [_row(cells) for cells in body]
    text += ["", " ".join(notes(comparison)), ""]
    text += [f"- {key}: {value}" for key, value in _facts(comparison).items()]
    if comparison.failed:
        text += ["", "Failed:", ""]
        text += [f"- {failure.replace(chr(10), '; ')}" for failure in comparison.failures()]
    return "\n".join(text) + "\n"


def setting_cells(comparison: ComparedRuns, row: Row) -> list[str]:
    """One per varied key; a dash where the method does not have it."""
    settings, vary = row.settings, comparison.about.vary
    return [shown(settings[key]) if key in settings else NONE for key in vary]


def as_records(comparison: ComparedRuns) -> Iterator[list[object]]:
    """A tidy table: a line with the names, then one per run with its figures as they are."""
    vary, figures = list(comparison.about.vary), [field.name for field in fields(Figures)]
    target = comparison.target
    timed = ["time_to_target"] if target is not None else []
    kept = [f"retention_{kind}" for kind in KINDS] if measures_retention(comparison) else []
    yield ["method", *vary, "seed", *figures, *timed, *kept, "error"]
    for run in comparison.runs:
        settings = [shown(run.settings[key]) if key in run.settings else None for key in vary]
        measured = [getattr(run.figures, name, None) for name in figures]
        times = [run.time_to(target)] if target is not None else []
        retained = retention_of_run(comparison, run).values() if kept else ()
        yield [run.method, *settings, run.seed, *measured, *times, *retained, run.error]


def notes(comparison: ComparedRuns) -> Iterator[str]:
    """What a reader of the table has to know."""
    if comparison.target is not None:
        yield f"Target: {comparison.explain_target()}."
    elif comparison.about.target is not None and comparison.shows_loss:
        yield "No time to the target is taken: the task has no accuracy."
    if any(row.deviation is not None for row in comparison.rows):
        yield f"Mean{SPREAD}standard deviation over seeds, where they differ."
    own = [name for name in comparison.about.methods if name in comparison.about.recipe.methods]
    if own:
        yield f"With settings of their own, by the recipe's `methods`: {', '.join(own)}."
    yield _NOTE
    if measures_retention(comparison):
        yield _RETENTION


def _lines(comparison: ComparedRuns) -> Iterator[Line]:
    rows = comparison.rows
    if comparison.failed:
        yield "failed runs", [str(len(row.errors) or NONE) for row in rows]
    if comparison.shows_loss:
        yield "final loss", [_learned(row, "loss", brief) for row in rows]
        yield "best loss", [_learned(row, "best_loss", brief) for row in rows]
    else:
        yield "final accuracy, %", [_percent(row, "accuracy") for row in rows]
        yield "best accuracy, %", [_percent(row, "best_accuracy") for row in rows]
    if any(row.mean is not None and row.mean.test_accuracy is not None for row in rows):
        yield "test accuracy, %", [_percent(row, "test_accuracy") for row in rows]
    if comparison.target is not None:
        yield f"time to {100 * comparison.target:.1f} %, s", [_time(row) for row in rows]
    if comparison.reference is not None:
        yield f"x {comparison.reference}'s", [_spread(row.ratio, None, brief) for row in rows]
    if measures_retention(comparison):
        retained = [retention_of(comparison, row) for row in rows]
        for kind in KINDS:
            yield f"R, {kind} samples", [_retained(found[kind]) for found in retained]
    for figure, (name, scale) in _FIGURES.items():
        if figure in _REUSED and not any(getattr(row.mean, figure, None) for row in rows):
            continue
        yield name, [_cell(row, figure, _scaled(scale)) for row in rows]


def _retained(found: Retained | None) -> str:
    return _spread(found.mean, found.deviation, "{:.2f}".format) if found else NONE


def _cell(row: Row, figure: str, wording: Callable[[float], str]) -> str:
    mean, deviation = (getattr(of, figure, None) for of in (row.mean, row.deviation))
    return _spread(mean, deviation, wording)


def _scaled(scale: float) -> Callable[[float], str]:
    return lambda number: brief(scale * number)


def _learned(row: Row, figure: str, wording: Callable[[float], str]) -> str:
    return "failed" if row.mean is None else _cell(row, figure, wording)


def _percent(row: Row, figure: str) -> str:
    return _learned(row, figure, lambda number: f"{100 * number:.1f}")


def _time(row: Row) -> str:
    if row.time_to_target is None:
        return NONE if row.mean is None else "never"
    cell = _spread(row.time_to_target, row.time_deviation, brief)
    return cell if row.reached == len(row.seeds) else f"{cell} ({row.reached} of {len(row.seeds)})"


def _spread(mean: float | None, deviation: float | None, wording: Callable[[float], str]) -> str:
    if mean is None:
        return NONE
    return wording(mean) + (f"{SPREAD}{wording(deviation)}" if deviation else "")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _own_settings(about: About) -> Iterator[tuple[str, object]]:
    """What the recipe has for single methods of those that were run."""

    def flat(prefix: str, table: Mapping[str, object]) -> Iterator[tuple[str, object]]:
        for key, value in table.items():
            if isinstance(value, Mapping):
                yield from flat(f"{prefix}.{key}", value)
            else:
                yield f"{prefix}.{key}", value

    for name in about.methods:
        if (own := about.recipe.methods.get(name)) is not None:
            yield from flat(name, own.options | own.tables)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _facts(comparison: ComparedRuns) -> dict[str, str]:
    about = comparison.about
    facts = {
        "command": f"`{about.command}`" if about.command else f"`fedoptima.{_CALLS[about.kind]}`",
        "recipe": f"{comparison.name} (in full in {about.kind}.json)",
        "seeds": ", ".join(str(seed) for seed in about.seeds),
    }
    stop = {key: value for key, value in asdict(about.recipe.stop).items() if value is not None}
    facts["stop"] = ", ".join(f"`{key} = {_plain(value)}`" for key, value in stop.items())
    if not about.dry and (share := about.recipe.data.validation) != "test":
        facts["evaluated on"] = f"{100 * share:g} % of the training data, held out"
    shared = {option: value for option, value in about.options.items() if "." not in option}
    if shared:
        given = (f"`{option} = {value!r}`" for option, value in shared.items())
        facts["options, of the methods that have them"] = ", ".join(given)
    own = dict(_own_settings(about))
    own |= {key: value for key, value in about.options.items() if key not in shared}
    if own:
        facts["options of one method alone"] = ", ".join(
            f"`{key} = {value!r}`" for key, value in own.items()
        )
    if about.dry:
        facts["dry"] = "only the timing was simulated, nothing was trained"
    facts["versions"] = ", ".join(f"{what} {version}" for what, version in about.versions.items())
    facts["machine"] = about.machine
    facts["date"] = about.date
    return facts
