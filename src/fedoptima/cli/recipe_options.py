"""The recipe a command works on: the file, then the flags; mistakes in it name the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedoptima.core.errors import ConfigError

if TYPE_CHECKING:
    from fedoptima.config.schema import Recipe


def read_recipe(
    path: Path,
    *,
    method: str | None = None,
    sets: list[str] | None = None,
    seed: int | None = None,
    device: str | None = None,
    workers: str | None = None,
) -> Recipe:
    from fedoptima.config.load import load_recipe, read_toml

    overrides = list(sets or [])
    if method is not None and _method_of(read_toml(path)) != method:
        # First, so that --set can give options: another method begins with its own defaults.
        overrides.insert(0, f"method={{name={json.dumps(method)}}}")
    if seed is not None:
        overrides.append(f"seed={seed}")
    if device is not None:
        overrides.append(f"device={json.dumps(device)}")
    if workers is not None:
        overrides.append(f"workers={json.dumps(number_or_auto(workers))}")
    return load_recipe(path, overrides)


def number_or_auto(workers: str) -> int | Literal["auto"]:
    """What ``--workers`` says."""
    if workers == "auto":
        return "auto"
    try:
        number = int(workers)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(f"--workers {workers}: give a number of processes from 1 on, or auto")
    return number


def _method_of(table: dict[str, object]) -> object:
    method = table.get("method")
    return method.get("name") if isinstance(method, dict) else None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Inside, a mistake that shows only when the recipe is carried out names its file too."""
    try:
        yield
    except ConfigError as error:
        if str(path) in str(error) or str(error).startswith("--"):  # an option's mistake
            raise
        raise ConfigError(f"{path}: {error}") from error


def allowance(recipe: Recipe) -> list[str]:
    """The options with which a run of this recipe, the user's own, is read back from its folder."""
    from fedoptima.experiments.given import named_packages

    return [word for package in named_packages(recipe) for word in ("--allow-module", package)]


def refuse_with_resume(asked: Mapping[str, object]) -> None:
    """Options that a resumed run has from its start; None: not given."""
    given = [option for option, value in asked.items() if value is not None]
    if given:
        raise ConfigError(
            f"--resume continues a run as it was started: leave out {', '.join(given)}, or "
            "start another run without --resume"
        )
