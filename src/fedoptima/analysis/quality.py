"""How good a model is, in the one figure that is shown where there is room for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedoptima.analysis.curve import Point
from fedoptima.analysis.formatting import brief, percent
from fedoptima.core.stopping import ACCURACY, LOSS


@dataclass(frozen=True, slots=True)
class Quality:
    """The accuracy, or the loss where the task has none."""

    name: str
    last: float
    best: float

    def __str__(self) -> str:
        return f"{self.name} {self._figure(self.last)} (best {self._figure(self.best)})"

    @property
    def short(self) -> str:
        """A share is an accuracy; all else says what it is."""
        return percent(self.last) if self.name == ACCURACY else f"{self.name} {brief(self.last)}"

    def _figure(self, value: float) -> str:
        return percent(value) if self.name == ACCURACY else brief(value)


def quality(measured: Mapping[str, Sequence[float]]) -> Quality | None:
    """``measured``: figures of all evaluations, by name. None: there is none of either yet."""
    for name, best in ((ACCURACY, max), (LOSS, min)):
        if found := measured.get(name):
            return Quality(name, found[-1], best(found))
    return None


def quality_of(points: Iterable[Point]) -> Quality | None:
    measured: dict[str, list[float]] = {ACCURACY: [], LOSS: []}
    for point in points:
        for name, value in ((ACCURACY, point.accuracy), (LOSS, point.loss)):
            if value is not None:
                measured[name].append(value)
    return quality(measured)
