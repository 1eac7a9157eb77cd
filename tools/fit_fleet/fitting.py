"""The parameters with the least squared error: a coarse grid, then Nelder and Mead's method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log

from scipy.optimize import minimize

Parameters = Mapping[str, float]


@dataclass(frozen=True)
class Fit:
    parameters: dict[str, float]
    error: float  # the sum of squared terms
    cells: tuple[tuple[dict[str, float], float], ...]  # of the grid, each with its error
    evaluations: int

    def ranges(self, more: float) -> dict[str, tuple[float, float]]:
        """Of each parameter: in cells of the grid whose error is at most so much above the best."""
        near = [cell for cell, error in self.cells if error <= self.error + more]
        near.append(self.parameters)
        return {
            name: (min(cell[name] for cell in near), max(cell[name] for cell in near))
            for name in self.parameters
        }


def fit(
    terms: Callable[[Parameters], Sequence[float]],
    grid: Mapping[str, Sequence[float]],
    *,
    refinements: int = 60,
) -> Fit:
    """``grid``: positive values of each parameter; the refinement works on their logarithms."""

    def error(parameters: Parameters) -> float:
        return sum(term * term for term in terms(parameters))

    cells = []
    for values in product(*grid.values()):
        cell = dict(zip(grid, values, strict=True))
        cells.append((cell, error(cell)))
    best, _ = min(cells, key=lambda cell: cell[1])
    found = minimize(
        lambda logs: error(dict(zip(grid, map(exp, logs), strict=True))),
        [log(best[name]) for name in grid],
        method="Nelder-Mead",
        options={
            "maxfev": refinements,
            "xatol": 0.01,
            "fatol": 1e-3,
            "initial_simplex": _around(best),
        },
    )
    parameters = dict(zip(grid, map(exp, found.x), strict=True))
    return Fit(parameters, float(found.fun), tuple(cells), len(cells) + found.nfev)


def _around(best: Parameters) -> list[list[float]]:
    """The corners that the search starts with: the best cell, and a fifth more of each."""
    start = [log(value) for value in best.values()]
    return [start, *([x + 0.2 * (i == j) for j, x in enumerate(start)] for i in range(len(start)))]
