"""Where a run goes whose folder was not named."""

from __future__ import annotations

from pathlib import Path

_LONGEST = 100  # bytes, of the 255 that file systems allow: numbers and other names are added


def fresh_directory(parent: Path, name: str) -> Path:
    """``parent/name``, or ``parent/name-2`` and so on if that is taken.

    Always directly in ``parent``, whatever a recipe calls itself.
    """
    plain = "".join("_" if c == "/" or not c.isprintable() else c for c in name)
    plain = plain.encode()[:_LONGEST].decode(errors="ignore")
    path, number = parent / plain, 1
    while path.exists():
        number += 1
        path = parent / f"{plain}-{number}"
    return path
