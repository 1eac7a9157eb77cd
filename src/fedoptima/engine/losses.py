"""A learner's training losses, to be checked once per round."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedoptima.core.errors import TrainingDiverged
from fedoptima.engine.host_copy import HostCopy


@dataclass(frozen=True)
class Losses:
    """The sum of a learner's training losses over some steps."""

    who: str
    total: HostCopy
    steps: int
    rate: float

    def check(self) -> None:
        """Raise TrainingDiverged if one was not finite."""
        ((total,),) = self.total.read()
        if self.steps and not math.isfinite(total):
            raise TrainingDiverged(
                f"the training loss of {self.who} is {total:g} after {self.steps} "
                f"steps at learning rate {self.rate:g}; lower the learning rate, "
                "set clip_norm, or look for infinite values in the data"
            )
