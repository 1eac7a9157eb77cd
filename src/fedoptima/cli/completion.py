"""What the shell completes besides commands and options: recipes, methods, folders of runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def recipes(incomplete: str) -> list[str]:
    """Those in the current folder, in recipes/, and where the word leads so far."""
    folders = dict.fromkeys((_folder(incomplete), Path(), Path("recipes")))
    found = (str(path) for folder in folders for path in sorted(folder.glob("*.toml")))
    return _beginning(incomplete, found)


def methods(incomplete: str) -> list[str]:
    from fedoptima.methods.registry import METHODS

    return _beginning(incomplete, METHODS)


def runs(incomplete: str) -> list[str]:
    folders = dict.fromkeys((_folder(incomplete), Path("runs")))
    found = (
        str(file.parent) for folder in folders for file in sorted(folder.glob("*/config.json"))
    )
    return _beginning(incomplete, found)


def _folder(incomplete: str) -> Path:
    return Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name.startswith(incomplete)))
