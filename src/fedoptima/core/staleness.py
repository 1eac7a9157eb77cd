"""How much a late update still counts: FedAsync's rules and the paper's ``1 / (s + 1)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedoptima.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AlphaDecay:
    """FedAsync's authors lower alpha during a run: by ``factor`` after each of ``at`` merges."""

    factor: float = 1.0
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:
            raise ConfigError(f"alpha_decay = {self.factor}: must be above 0 and at most 1")
        if any(merges < 0 for merges in self.at):
            raise ConfigError(f"alpha_decay_at = {list(self.at)}: give numbers of merges")

    def left(self, merges: int) -> float:
        """What is left of alpha after that many."""
        return self.factor ** sum(merges >= at for at in self.at)


@dataclass(frozen=True, slots=True)
class StalenessRule:
    """The weight of an update that is ``s`` versions behind, ``alpha * f(s)`` up to ``alpha_max``.

    inverse     1 / (s + 1)                                       (Alg. 4, l. 16)
    constant    1                                                 (FedAsync)
    polynomial  (s + 1) ** -a                                     (FedAsync)
    hinge       1 while s <= b, then 1 / (a * (s - b) + 1)        (FedAsync)

    ``a``, left open, is what FedAsync's authors publish: 0.5 for polynomial, 10 for hinge.
    """

    kind: Literal["inverse", "constant", "polynomial", "hinge"] = "inverse"
    alpha: float = 1.0
    a: float | None = None
    b: float = 4.0
    alpha_max: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1 or not 0 < self.alpha_max <= 1:
            raise ConfigError(
                f"alpha = {self.alpha} and alpha_max = {self.alpha_max} are shares of the merged "
                "model: each must be above 0 and at most 1"
            )
        if self.slope <= 0 or self.b < 0:
            raise ConfigError(f"a = {self.a} must be above 0 and b = {self.b} at least 0")

    @property
    def slope(self) -> float:
        """a, as given or as published."""
        if self.a is not None:
            return self.a
        return 10.0 if self.kind == "hinge" else 0.5

    def weight(self, staleness: float) -> float:
        match self.kind:
            case "inverse":
                factor = 1 / (staleness + 1)
            case "constant":
                factor = 1.0
            case "polynomial":
                factor = float((staleness + 1) ** -self.slope)
            case "hinge":
                late = staleness - self.b
                factor = 1.0 if late <= 0 else 1 / (self.slope * late + 1)
        return min(self.alpha * factor, self.alpha_max)
