"""Which figures there are: ``figures.toml`` in the folder of the paper's recipes, as typed data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from fedoptima.config.fleet import Strict
from fedoptima.config.load import read_toml, validate
from fedoptima.core.errors import ConfigError

FILE = "figures.toml"
FOLDER = Path("recipes/paper")
ALL = "all"

Kind = Literal["dry", "training", "plan"]
Protocol = Literal["epochs", "time", "convergence"]  # see `comparison.protocols`
Settings = dict[str, object]
Varied = dict[str, tuple[object, ...]]


class Workload(Strict):
    title: str
    recipe: str  # a file of the same folder
    set: Settings = Field(default={})
    tuned: bool = True  # each method has settings of its own, chosen for it


class Panel(Strict):
    """One drawing for each workload of the figure."""

    draw: Literal["bars", "lines", "curves", "splits"]
    measure: str = ""  # of bars and lines: see `reproduction.measures`
    relative: bool = False  # to the first value of what is varied
    axis: str = ""  # what the x axis of lines is called; empty: as the key that is varied

    @model_validator(mode="after")
    def _measured(self) -> Panel:
        if (self.draw in ("bars", "lines")) != bool(self.measure):
            raise ValueError("measure belongs to bars and lines, and to no others")
        return self


class QuickChanges(Strict):
    set: Settings = Field(default={})
    vary: Varied | None = None


class Figure(Strict):
    place: str  # in the paper
    title: str
    kind: Kind
    workloads: tuple[str, ...]
    panels: tuple[Panel, ...]
    methods: tuple[str, ...] = (ALL,)
    set: Settings = Field(default={})
    vary: Varied = Field(default={})
    protocol: Protocol = "epochs"
    seeds: int | None = None  # at most
    # See `reproduction.retiming`:
    times: str = ""  # of PiPar, and of what is not trained: the dry figure that has them
    learns_as: dict[str, str] = Field(default={})  # labels: what is not trained, and what is
    note: str = ""  # what a reader of the drawing has to know
    quick: QuickChanges = QuickChanges()


class Quick(Strict):
    """A small workload instead of the paper's."""

    workload: str
    dry: Settings = Field(default={})
    training: Settings = Field(default={})
    plan: Settings = Field(default={})


class _Tables(Strict):
    workloads: dict[str, Workload]
    figures: dict[str, Figure]
    quick: Quick

    @model_validator(mode="after")
    def _known(self) -> _Tables:
        for name, figure in self.figures.items():
            for workload in figure.workloads:
                if workload not in self.workloads:
                    raise ValueError(f"figures.{name}: there is no workload {workload!r}")
            if figure.times and figure.times not in self.figures:
                raise ValueError(f"figures.{name}: there is no figure {figure.times!r}")
            if figure.learns_as and not figure.times:
                raise ValueError(f"figures.{name}: learns_as needs times, a dry figure")
        if self.quick.workload not in self.workloads:
            raise ValueError(f"quick: there is no workload {self.quick.workload!r}")
        return self


@dataclass(frozen=True)
class Catalogue:
    folder: Path
    workloads: dict[str, Workload]
    figures: dict[str, Figure]

    def chosen(self, names: Sequence[str]) -> dict[str, Figure]:
        """Those with these names; all if there are none."""
        for name in names:
            if name not in self.figures:
                near = get_close_matches(name, self.figures, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise ConfigError(
                    f"{name}: no figure is called so; {hint}there are {', '.join(self.figures)}"
                )
        return {name: self.figures[name] for name in self.figures if not names or name in names}

    def chosen_workloads(self, names: str | None) -> list[str]:
        """Names with commas between them; None: all."""
        if names is None:
            return list(self.workloads)
        chosen = [name.strip() for name in names.split(",")]
        for name in chosen:
            if name not in self.workloads:
                raise ConfigError(f"--workloads {name}: there are {', '.join(self.workloads)}")
        return chosen


def read_catalogue(folder: Path = FOLDER, *, quick: bool = False) -> Catalogue:
    path = folder / FILE
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file; the figures are described in the repository: call this in a "
            "checkout of it, or name the folder with --recipes"
        )
    tables = validate(_Tables, read_toml(path), str(path))
    figures = tables.figures
    if quick:
        figures = {name: _quick(figure, tables.quick) for name, figure in figures.items()}
    return Catalogue(folder, tables.workloads, figures)


def _quick(figure: Figure, quick: Quick) -> Figure:
    smaller: Settings = getattr(quick, figure.kind)
    last = {**{k: v for k, v in smaller.items() if k not in figure.quick.set}, **figure.quick.set}
    return figure.model_copy(
        update={
            "workloads": (quick.workload,),
            # In the order in which they are applied: "stop" replaces all of it, also "stop.epochs".
            "set": {k: v for k, v in figure.set.items() if k not in last} | last,
            "vary": figure.vary if figure.quick.vary is None else figure.quick.vary,
            "learns_as": {},  # quick enough to train all, and the small model normalises batches
        }
    )
