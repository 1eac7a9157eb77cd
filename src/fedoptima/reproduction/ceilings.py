"""What the same model reaches on all data in one place: the ceiling of methods, if tried enough."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedoptima.core.errors import ConfigError
from fedoptima.paper_numbers import RECIPES


@dataclass(frozen=True)
class Ceiling:
    """Of the best configuration, over its seeds."""

    best: float  # the mean of each run's best epoch, as methods are judged by theirs
    last: float  # the mean after the last epoch
    lowest: float
    highest: float
    seeds: int
    epochs: int
    configurations: int  # that it is the best of, on held-out data
    no_ceiling: str = ""  # why methods cannot be measured against it

    @property
    def words(self) -> str:
        between = f"{100 * self.lowest:.1f} to {100 * self.highest:.1f}"
        said = (
            f"Centralised training of the same model: {100 * self.best:.1f} % in the best epoch of "
            f"each run, {100 * self.last:.1f} % after the last ({between}; {self.seeds} seeds, "
            f"{self.epochs} epochs, the best of {self.configurations} configurations on held-out "
            "data)"
        )
        return f"{said}. This is not a ceiling: {self.no_ceiling}" if self.no_ceiling else said


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
        means = found["best epoch, mean"], found["last epoch, mean"]
        why = plain.get("no ceiling", "")
        return Ceiling(*means, low, high, len(runs), epochs, len(tried), why)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); `python -m tools.centralised` makes it"
        ) from error
