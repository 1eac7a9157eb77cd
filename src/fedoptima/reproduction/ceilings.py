"""What the same model reaches on all data in one place: the ceiling of every method."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedoptima.core.errors import ConfigError
from fedoptima.paper_numbers import RECIPES


@dataclass(frozen=True)
class Ceiling:
    """Of the best configuration, over its seeds."""

    accuracy: float  # the mean after the last epoch
    lowest: float
    highest: float
    seeds: int
    epochs: int
    configurations: int  # that it is the best of, on held-out data

    @property
    def words(self) -> str:
        between = f"{100 * self.lowest:.1f} to {100 * self.highest:.1f}"
        return (
            f"Centralised training of the same model: {100 * self.accuracy:.1f} % ({between}; "
            f"{self.seeds} seeds, {self.epochs} epochs, the best of {self.configurations} "
            "configurations on held-out data)"
        )


def read_ceilings(folder: Path) -> dict[str, Ceiling]:
    """By workload, of those that are there: files of `python -m tools.centralised`."""
    return {
        workload: _read(path)
        for workload, recipe in RECIPES.items()
        if (path := folder / f"{recipe}.json").is_file()
    }


def _read(path: Path) -> Ceiling:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        found = plain["test accuracy"]
        low, high = found["last epoch, lowest and highest"]
        runs, tried = plain["runs"], plain["configurations"]
        epochs = max(runs[0]["epochs"])
        return Ceiling(found["last epoch, mean"], low, high, len(runs), epochs, len(tried))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); `python -m tools.centralised` makes it"
        ) from error
