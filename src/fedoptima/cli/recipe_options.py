"""The recipe a command works on: the file, then the flags; mistakes in it name the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedoptima.core.errors import ConfigError
from fedoptima.display.console import stderr

if TYPE_CHECKING:
    from fedoptima.config.schema import Recipe
    from fedoptima.experiments.run_directory import RunDirectory


def read_recipe(
    path: Path,
    *,
    method: str | None = None,
    sets: list[str] | None = None,
    seed: int | None = None,
    device: str | None = None,
    workers: str | None = None,
    several: bool = False,
) -> Recipe:
    """``several``: it is for several methods; otherwise what its method has of its own is laid over
    the rest."""
    from fedoptima.config.load import load_recipe, of_method, read_toml

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
    recipe = load_recipe(path, overrides)
    return recipe if several else of_method(recipe)


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
def naming(path: Path, folder: Path | None = None) -> Iterator[None]:
    """Inside, a mistake that shows only when the recipe is carried out names its file too.

    ``folder``: the run's; what is wrong with it is no mistake of the recipe, nor is an option's.
    """
    others = ("--", f"{folder}:", f"{folder}/")
    try:
        yield
    except ConfigError as error:
        if str(path) in str(error) or str(error).startswith(others):
            raise
        raise ConfigError(f"{path}: {error}") from error


def allowance(recipe: Recipe) -> list[str]:
    """The options with which a run of this recipe, the user's own, is read back from its folder."""
    from fedoptima.experiments.given import named_packages

    return [word for package in named_packages(recipe) for word in ("--allow-module", package)]


def extension(
    run: RunDirectory, recipe: Recipe, wanted: list[str] | None
) -> tuple[Recipe, dict[str, object]]:
    """What ``--extend`` asks for, which a line says: the recipe with it, and the changes."""
    from fedoptima.config.load import parse_value
    from fedoptima.experiments.extension import announcement, extend

    changes: dict[str, object] = {}
    for item in wanted or []:
        key, sign, text = item.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"--extend {item}: write it as stop.KEY=VALUE, e.g. stop.epochs=200")
        changes[key.strip()] = parse_value(text)
    if not changes:
        return recipe, {}
    extended = extend(run, recipe, changes)
    stderr().print(announcement(recipe, extended), soft_wrap=True)
    return extended, changes


def refuse_with_resume(asked: Mapping[str, object]) -> None:
    """Options that a resumed run has from its start; None: not given."""
    given = [option for option, value in asked.items() if value is not None]
    if given:
        raise ConfigError(
            f"--resume continues a run as it was started: leave out {', '.join(given)}, or "
            "start another run without --resume"
        )
