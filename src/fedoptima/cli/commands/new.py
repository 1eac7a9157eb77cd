"""``fedoptima new``: a project to begin with, whose commands work as they stand."""

from __future__ import annotations

import keyword
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedoptima.core.errors import ConfigError
from fedoptima.display.console import stdout

_PROJECT = Path(__file__).parents[1] / "project"
_SUFFIX = ".template"
_NAME = "myapp"  # in the templates


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the project and its package, e.g. myapp.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Its folder, new or empty.  [default: NAME]"),
    ] = None,
) -> None:
    """Write a project: a package with a model and data, a recipe, a test, a README.

    It works as written: simulated, on this machine and over the network. Then replace the model
    and data with yours.
    """
    folder = out or Path(name)
    _check(name, folder)
    for template in sorted(_PROJECT.rglob(f"*{_SUFFIX}")):
        path = folder / _target(template, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.read_text(encoding="utf-8").replace(_NAME, name), encoding="utf-8")
    stdout().print(
        f"wrote {folder}: a model, data, a recipe, a test, and README.md with what to do next\n\n"
        f"  cd {folder}\n"
        "  fedoptima simulate recipe.toml\n"
        f"  fedoptima run recipe.toml --allow-module {name}",
        soft_wrap=True,
    )


def _target(template: Path, name: str) -> Path:
    path = template.relative_to(_PROJECT).as_posix().removesuffix(_SUFFIX)
    return Path(".gitignore" if path == "gitignore" else path.replace(_NAME, name))


def _check(name: str, folder: Path) -> None:
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name}: cannot be the name of a Python package: use letters, digits and _, for "
            "example my_app"
        )
    taken = name in sys.stdlib_module_names or name in ("fedoptima", "tests")
    if taken or (find_spec(name) is not None and not folder.exists()):
        raise ConfigError(f"{name}: there is a Python package of this name already; choose another")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists already; choose another folder (--out)")
