"""Evaluates weights without touching the modules that train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from fedoptima.core.events import Metrics
from fedoptima.core.plan import Plan
from fedoptima.engine.streams import current_stream
from fedoptima.engine.workload import Workload


class Evaluator:
    def __init__(self, workload: Workload, plan: Plan) -> None:
        self._workload = workload
        self._plan = plan
        self._spares: list[Sequence[nn.Module]] = []  # both sides, not in use

    def of(self, weights: Mapping[str, Tensor]) -> Callable[[], Metrics]:
        """Takes a copy of the weights; the result may be called later and on any thread."""
        sides = self.load(weights)
        compute = self._workload.compute
        copied = current_stream(compute).record_event() if compute.type == "cuda" else None

        def measure() -> Metrics:
            if copied is not None:  # on the stream of whoever has taken the copy
                current_stream(compute).wait_event(copied)
            try:
                return self._workload.evaluate(sides)
            finally:
                self.give_back(sides)

        return measure

    def load(self, weights: Mapping[str, Tensor]) -> Sequence[nn.Module]:
        """Both sides with these weights, to be given back."""
        sides = self._spares.pop() if self._spares else self._more_sides()
        for side in sides:
            side.load_state_dict({name: weights[name] for name in side.state_dict()})
        return sides

    def give_back(self, sides: Sequence[nn.Module]) -> None:
        self._spares.append(sides)

    def _more_sides(self) -> list[nn.Module]:
        # Not copies of those that train: a module that has run may not be copyable.
        sides = self._workload.sides(self._plan)
        return [side for side in (sides.device, sides.server) if side is not None]
