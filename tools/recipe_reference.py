"""docs/recipe.md: every key of a recipe, made from the schema (--write renews it)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticUndefined

from tools.recipe_keys import FROM_THE_DATA, Key, Section, sections, toml

REFERENCE = Path(__file__).parents[1] / "docs" / "recipe.md"

_INTRODUCTION = """\
# Recipe reference

A recipe is a TOML file that says everything about a run: `fedoptima simulate recipe.toml`. This
page is made from the schema by `python -m tools.recipe_reference --write`. Any other key is an
error, and the message names the nearest one.

`--set KEY=VALUE` changes a key for one run, the value as in TOML: `--set training.batch_size=20
--set method.name=fl`. The items of a list are counted from 0: `--set fleet.devices.0.gflops=8`. In
Python the same tables are dictionaries:
`fedoptima.simulate("recipe.toml", training={"batch_size": 20})`. There `training` and `split`
change the keys that are given; any other table takes the place of the recipe's.

A recipe has at least `model.name`, `data.name` and one key of `stop`; a simulation also needs
`fleet`. A key whose default is *unset* is one that is left out.
"""


def forgotten(found: list[Section]) -> list[str]:
    """Keys without a meaning or an example, and how to give it."""
    return [
        f"{section.source}: the key {key.name!r} has no {' and no '.join(key.missing)}; give it "
        f"{section.how} there, and run python -m tools.recipe_reference --write"
        for section in found
        for key in section.keys
        if key.missing
    ]


def wrong_examples() -> list[str]:
    """Keys whose example is not accepted."""
    found = []
    for section in sections():
        for key in section.keys:
            try:
                TypeAdapter(key.accepts).validate_python(key.example)
            except ValueError as error:
                found.append(f"{section.source}: {key.name} = {key.example!r}: {error}")
    return found


def render() -> str:
    parts = [_INTRODUCTION]
    for section in sections():
        lines = [f"## {section.title}", ""]
        lines += [section.about, ""] if section.about else []
        lines += ["| key | type | default | meaning | example |", "|---|---|---|---|---|"]
        lines += [_row(key) for key in section.keys]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _row(key: Key) -> str:
    default = _default(key.default)
    example = f"`{key.name} = {toml(key.example)}`"
    cells = (f"`{key.name}`", key.kind, default, key.meaning, example)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(value: object) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "unset"
    if value is FROM_THE_DATA:
        return FROM_THE_DATA
    if isinstance(value, BaseModel):
        return "its own defaults"
    return "none" if value in ((), {}) else f"`{toml(value)}`"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="renew the page")
    write = parser.parse_args().write
    if mistakes := forgotten(sections()) + wrong_examples():
        print("\n".join(mistakes), file=sys.stderr)
        return 1
    if write:
        REFERENCE.write_text(render())
        return 0
    current = REFERENCE.read_text() == render()
    print(f"{REFERENCE.name}: " + ("current" if current else "not current; renew it with --write"))
    return 0 if current else 1


if __name__ == "__main__":
    sys.exit(main())
