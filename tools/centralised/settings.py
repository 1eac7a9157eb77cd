"""What one training is made of, and the lists of them to try: TOML, a base and what differs."""

from __future__ import annotations

import math
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from fedoptima.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Settings:
    epochs: int
    batch: int = 100
    optimiser: Literal["adamw", "adam", "sgd"] = "adamw"  # sgd: Nesterov momentum of 0.9
    rate: float = 1e-3
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: float = 0.05  # share of all steps
    weight_decay: float = 0.01
    label_smoothing: float = 0.0
    dropout: float | None = None  # text models only; None: the model's own
    hide: float = 0.0  # share of the words replaced by "unknown" in training
    bfloat16: bool = False  # products and convolutions in bfloat16, weights in float32

    def rates(self, steps: int) -> list[float]:
        """The learning rate of every step."""
        rising = round(self.warmup * steps)
        return [self.rate * self._share(step, rising, steps) for step in range(steps)]

    def _share(self, step: int, rising: int, steps: int) -> float:
        if step < rising:
            return (step + 1) / rising
        done = (step - rising) / (steps - rising)
        match self.schedule:
            case "cosine":
                return (1 + math.cos(math.pi * done)) / 2
            case "linear":
                return 1 - done
            case "constant":
                return 1.0

    def told(self) -> dict[str, object]:
        return {key: value for key, value in asdict(self).items() if value is not None}


def read_grid(path: Path) -> list[Settings]:
    """`[base]` holds what all have, every `[[try]]` what it changes."""
    with path.open("rb") as file:
        table = tomllib.load(file)
    known = {field.name for field in fields(Settings)}
    made: list[Settings] = []
    for number, change in enumerate(table.get("try", []), start=1):
        merged: dict[str, Any] = {**table.get("base", {}), **change}
        unknown = sorted(merged.keys() - known)
        if unknown:
            raise ConfigError(
                f"{path}: try {number}: {unknown[0]}: unknown key; there are "
                f"{', '.join(sorted(known))}"
            )
        settings = Settings(**merged)
        if settings in made:
            raise ConfigError(
                f"{path}: try {number}: is the same as try {made.index(settings) + 1}"
            )
        made.append(settings)
    if not made:
        raise ConfigError(f"{path}: tries nothing; add a [[try]]")
    return made
