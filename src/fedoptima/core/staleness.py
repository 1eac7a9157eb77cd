"""How much a late update still counts: FedAsync's rules and the paper's ``1 / (s + 1)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedoptima.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StalenessRule:
    """The weight of an update that is ``s`` versions behind, ``alpha * f(s)`` up to ``alpha_max``.

    inverse     1 / (s + 1)                                       (Alg. 4, l. 16)
    constant    1                                                 (FedAsync)
    polynomial  (s + 1) ** -a                                     (FedAsync)
    hinge       1 while s <= b, then 1 / (a * (s - b) + 1)        (FedAsync)
    """

    kind: Literal["inverse", "constant", "polynomial", "hinge"] = "inverse"
    alpha: float = 1.0
    a: float = 0.5
    b: float = 4.0
    alpha_max: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1 or not 0 < self.alpha_max <= 1:
            raise ConfigError(
                f"alpha = {self.alpha} and alpha_max = {self.alpha_max} are shares of the merged "
                "model: each must be above 0 and at most 1"
            )
        if self.a <= 0 or self.b < 0:
            raise ConfigError(f"a = {self.a} must be above 0 and b = {self.b} at least 0")

    def weight(self, staleness: float) -> float:
        match self.kind:
            case "inverse":
                factor = 1 / (staleness + 1)
            case "constant":
                factor = 1.0
            case "polynomial":
                factor = float((staleness + 1) ** -self.a)
            case "hinge":
                late = staleness - self.b
                factor = 1.0 if late <= 0 else 1 / (self.a * late + 1)
        return min(self.alpha * factor, self.alpha_max)
