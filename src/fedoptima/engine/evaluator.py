"""Evaluates weights without touching the modules that train."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from fedoptima.core.events import Metrics
from fedoptima.core.plan import Plan
from fedoptima.engine.task import Task


class Evaluator:
    def __init__(self, task: Task, plan: Plan) -> None:
        self._task = task
        self._plan = plan
        self._spares: list[list[nn.Module]] = []  # both sides, not in use

    def of(self, weights: Mapping[str, Tensor]) -> Callable[[], Metrics]:
        """Takes a copy of the weights; the result may be called later and on any thread."""
        spares = self._spares
        sides = spares.pop() if spares else self._more_sides()
        for side in sides:
            side.load_state_dict({name: weights[name] for name in side.state_dict()})

        def measure() -> Metrics:
            try:
                return self._task.evaluate(sides)
            finally:
                spares.append(sides)

        return measure

    def _more_sides(self) -> list[nn.Module]:
        # Not copies of those that train: a module that has run may not be copyable.
        sides = self._task.sides(self._plan)
        return [side for side in (sides.device, sides.server) if side is not None]
