"""Who is fastest under which conditions: dry runs of every method over a grid of speeds and links.

The measure is the time of a useful sample. It is not the time to an accuracy: methods differ in
what a sample teaches them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fedoptima.comparison.dry_pace import Conditions, cut_of, pace_of, prepared
from fedoptima.comparison.spec import REFERENCE, cores
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError, FedOptimaError
from fedoptima.core.stopping import StopRule
from fedoptima.trace.run_folder import write_whole

Times = Mapping[str, float | None]  # seconds per useful sample, by method; None: it cannot run
_FIGURES = 4  # that count, in files


@dataclass(frozen=True)
class Grid:
    """The values of each axis, in order."""

    devices: tuple[float, ...] = (1 / 12, 1 / 6, 1 / 3, 1.0)
    mbps: tuple[float, ...] = (25.0, 50.0, 100.0, 200.0, 400.0)
    latency_ms: tuple[float, ...] = (0.0, 20.0, 100.0)
    server_gflops: tuple[float, ...] = (20.0, 40.0, 75.0, 150.0, 300.0, 600.0)

    @property
    def axes(self) -> tuple[tuple[float, ...], ...]:
        return self.devices, self.mbps, self.latency_ms, self.server_gflops

    @property
    def corners(self) -> Grid:
        """Only the ends of every axis."""
        return Grid(*(tuple(dict.fromkeys((axis[0], axis[-1]))) for axis in self.axes))

    def cells(self) -> Iterator[Conditions]:
        return (Conditions(*values) for values in product(*self.axes))

    def place(self, cell: Conditions) -> tuple[int, ...]:
        values = (cell.devices, cell.mbps, cell.latency_ms, cell.server_gflops)
        return tuple(axis.index(value) for axis, value in zip(self.axes, values, strict=True))


TESTBED_A = Grid()
# The server of Testbed B is a workstation: the same multiples of its speed as on A.
TESTBED_B = Grid(server_gflops=(1550.0, 3100.0, 5800.0, 11600.0, 23200.0, 46400.0))


@dataclass(frozen=True)
class Sensitivity:
    """The time of a useful sample for every method in every cell that is finished."""

    name: str  # of the recipe
    grid: Grid
    methods: tuple[str, ...]
    times: Mapping[Conditions, Times] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    reference: str = REFERENCE  # the method that the others are compared with
    later: tuple[Mapping[str, Any], ...] = ()  # the origins of methods that were measured again

    @property
    def missing(self) -> list[Conditions]:
        """Cells; also those in which a method could not run: perhaps it can now."""
        return [c for c in self.grid.cells() if None in self.times.get(c, {"": None}).values()]

    @property
    def origins(self) -> list[str]:
        """In words, a line each."""
        return [
            ", ".join(f"{key}: {value}" for key, value in origin.items())
            for origin in (self.origin, *self.later)
        ]

    def measured_by(self, origin: Mapping[str, Any]) -> Sensitivity:
        """What is missing is measured now; the file keeps saying where the rest came from."""
        if not self.origin:
            return replace(self, origin=origin)
        cells = [self.times.get(cell, {}) for cell in self.missing]
        methods = [m for m in self.methods if any(times.get(m) is None for times in cells)]
        now = {"methods": "; ".join(methods), **origin}
        return replace(self, later=(*self.later, now)) if methods else self

    def without(self, methods: Collection[str]) -> Sensitivity:
        """As if these had never been measured, whatever their options."""
        times = {
            cell: {m: None if m.split(",")[0] in methods else t for m, t in each.items()}
            for cell, each in self.times.items()
        }
        return replace(self, times=times)

    def winner(self, cell: Conditions) -> str:
        """The fastest; the first of equals, by the order of the methods."""
        known = {m: t for m, t in self.times[cell].items() if t is not None}
        return min(self.methods, key=lambda m: known.get(m, float("inf")))

    def lead(self, cell: Conditions) -> float | None:
        """The next best method's time over the reference's; below 1 the reference is not first."""
        own = self.times[cell].get(self.reference)
        others = [t for m, t in self.times[cell].items() if m != self.reference and t is not None]
        return min(others) / own if own and others else None

    # ---- as a file ---------------------------------------------------------------------------

    def to_json(self) -> str:
        """One line per cell."""
        head = {
            "recipe": self.name,
            "unit": "milliseconds per useful sample",
            "origin": dict(self.origin),
            "later": [dict(origin) for origin in self.later],
            "axes": ["devices", "mbps", "latency_ms", "server_gflops"],
            "grid": [list(axis) for axis in self.grid.axes],
            "reference": self.reference,
            "methods": list(self.methods),
        }
        cells = [
            [*self.grid.place(cell), *(_milliseconds(times.get(m)) for m in self.methods)]
            for cell, times in sorted(self.times.items())
        ]
        lines = ",\n".join(f"  {json.dumps(cell)}" for cell in cells)
        return f'{json.dumps(head, indent=1)[:-2]},\n "cells": [\n{lines}\n ]\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> Sensitivity:
        plain = json.loads(text)
        grid, methods = Grid(*map(tuple, plain["grid"])), tuple(plain["methods"])
        times = {}
        for a, b, c, d, *found in plain["cells"]:
            cell = Conditions(
                grid.devices[a], grid.mbps[b], grid.latency_ms[c], grid.server_gflops[d]
            )
            seconds = (None if ms is None else ms / 1000 for ms in found)
            times[cell] = dict(zip(methods, seconds, strict=True))
        reference, later = plain.get("reference", REFERENCE), tuple(plain.get("later", ()))
        return cls(plain["recipe"], grid, methods, times, plain["origin"], reference, later)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{1000 * seconds:.{_FIGURES}g}")


def measure_cell(
    recipe: Recipe,
    methods: Mapping[str, tuple[str, Mapping[str, object]]],
    cell: Conditions,
    known: Times | None = None,
) -> Times:
    """``methods``: by the name they are shown under, the method and its options.

    ``known``: times that are not measured again.
    """
    times: dict[str, float | None] = dict(known or {})
    cuts: dict[tuple[object, ...], str] = {}  # with a split of its own PiPar may choose the same
    for label, (method, options) in methods.items():
        if times.get(label):  # planning alone may take seconds
            continue
        others = tuple(pair for pair in options.items() if pair[0] != "own_split")
        try:
            once = prepared(recipe, method, options, cell, StopRule(rounds=1))
            same = cuts.setdefault((method, others, cut_of(once)), label)
            times[label] = times.get(same) or pace_of(once)
        except FedOptimaError:
            times[label] = None
    return times


def be_quiet() -> None:
    """Each of thousands of runs would say that it assumes complete data sets."""
    logging.getLogger("fedoptima.data").setLevel(logging.ERROR)


def measure(
    recipe: Recipe,
    grid: Grid,
    methods: Mapping[str, tuple[str, Mapping[str, object]]],
    *,
    file: Path | None = None,
    origin: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    news: Callable[[int, int], None] = lambda done, total: None,
    reference: str = REFERENCE,
    again: Collection[str] = (),
) -> Sensitivity:
    """All cells of the grid; those that are in the file are not measured again.

    The file is written after every few cells and at the end. ``again``: methods that are forgotten
    first, because they have changed since.
    """
    found = _kept(recipe, grid, tuple(methods), file).without(again)
    times = dict(found.times)
    found = replace(found.measured_by(origin or {}), times=times, reference=reference)
    missing, whole = found.missing, len(list(grid.cells()))
    done = whole - len(missing)
    jobs = jobs or cores()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        if again:
            write_whole(file, found.to_json())
    if jobs == 1 or len(missing) < 2:
        for count, cell in enumerate(missing, done + 1):
            times[cell] = measure_cell(recipe, methods, cell, times.get(cell))
            news(count, whole)
            if file is not None and count % 10 == 0:
                write_whole(file, found.to_json())
    else:
        with ProcessPoolExecutor(jobs, get_context("spawn"), be_quiet) as pool:
            waiting = {
                pool.submit(measure_cell, recipe, methods, c, times.get(c)): c for c in missing
            }
            for count, measured in enumerate(as_completed(waiting), done + 1):
                times[waiting[measured]] = measured.result()
                news(count, whole)
                if file is not None and count % 10 == 0:
                    write_whole(file, found.to_json())
    if file is not None and missing:
        write_whole(file, found.to_json())
    return found


def _kept(recipe: Recipe, grid: Grid, methods: Sequence[str], file: Path | None) -> Sensitivity:
    if file is None or not file.exists():
        return Sensitivity(recipe.name, grid, tuple(methods))
    kept = Sensitivity.from_json(file.read_text(encoding="utf-8"))
    if (kept.name, kept.grid, kept.methods) != (recipe.name, grid, tuple(methods)):
        raise ConfigError(
            f"{file}: holds another recipe, grid or choice of methods; delete it, or choose "
            "another folder"
        )
    return kept
