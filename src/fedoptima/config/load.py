"""Recipes from TOML files, with overrides; errors name the file, key, value and remedy."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from itertools import product
from numbers import Integral, Real
from operator import index
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedoptima.config.own_settings import TABLES, laid_over
from fedoptima.config.schema import Recipe
from fedoptima.config.unused import refuse_unused
from fedoptima.core.errors import ConfigError
from fedoptima.core.text import cut, printable

TomlTable = dict[str, Any]

_EXAMPLES = {
    "model": '; for example model.name = "vgg5"',
    "data": '; for example data.name = "digits"',
    "stop": "; set when the run ends, for example stop.epochs = 10",
}
Model = TypeVar("Model", bound=BaseModel)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a TOML file.

    Args:
        path: The file.
        overrides: Changes to it, `"key.path=value"`, the value as in TOML.

    Returns:
        The recipe, whole and checked.

    Raises:
        ConfigError: The file cannot be read, or something in it is wrong; every mistake is named.

    Example:
        ```python
        recipe = fedoptima.load_recipe("recipes/demo_digits.toml", ["stop.epochs=2"])
        ```
    """
    table, overridden = read_toml(Path(path)), TomlTable()
    refuse_unused(table, table, str(path))
    for override in overrides:
        apply_override(table, override)
        apply_override(overridden, override)
    refuse_unused(overridden, table, str(path))
    return validate(Recipe, table, f"{path} with --set" if overrides else str(path))


def of_method(recipe: Recipe) -> Recipe:
    """The recipe of its method alone: what ``methods`` has for it is laid over the rest.

    An option beside the method's name comes before one under ``methods``.
    """
    if not recipe.methods:
        return recipe
    name = recipe.method.name
    table: TomlTable = {**recipe.model_dump(exclude_unset=True), "workers": recipe.workers}
    del table["methods"]
    if (own := recipe.methods.get(name)) is not None:
        table = laid_over(table, own.tables)
        table["method"] = {"name": name, **own.options, **recipe.method.options}
    return validate(Recipe, table, f"{recipe.name}, methods.{name}")


def as_recipe(recipe: Recipe | str | Path) -> Recipe:
    """A recipe as a user gives it: the object, or the path of its file."""
    return recipe if isinstance(recipe, Recipe) else load_recipe(recipe)


def read_toml(path: Path) -> TomlTable:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_nearby(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; name a .toml file in it") from None
    except ValueError as error:  # its grammar, or bytes that are no UTF-8
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _nearby(path: Path) -> str:
    folders = (path.parent, Path("recipes"))
    found = {file.stem: file for folder in folders for file in sorted(folder.glob("*.toml"))}
    found.pop("pyproject", None)
    near = get_close_matches(path.stem, found, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {found[near[0]]}?"
    return f"; there are {', '.join(map(str, found.values()))}" if found else ""


def apply_override(table: TomlTable, override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign or not all(part.strip() for part in key.split(".")):
        raise ConfigError(f"--set {override}: write it as key.path=value, e.g. stop.epochs=5")
    try:
        set_key(table, key, parse_value(text))
        unset_in_methods(table, key)
    except ConfigError as error:
        raise ConfigError(f"--set {override}: {error}") from error


def parse_value(text: str) -> object:
    """As in TOML, or a bare word: ``--set method.name=fl``."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def set_key(table: TomlTable, key: str, value: object) -> None:
    """Tables on the way are made where they are missing; a number counts an array's items.

    "training.device+server.learning_rate" sets both.
    """
    for path in _paths(key):
        _set(table, path, value)


def unset_in_methods(table: TomlTable, key: str) -> None:
    """What is set from outside reaches every method, also those with a value of their own."""
    for own in table.get("methods", {}).values() if key.split(".")[0] in TABLES else ():
        for *path, last in _paths(key):
            place: Any = own
            for part in path:
                place = place.get(part) if isinstance(place, dict) else None
            if isinstance(place, dict):
                place.pop(last, None)


def _paths(key: str) -> Iterator[tuple[str, ...]]:
    return product(*([one.strip() for one in part.split("+")] for part in key.split(".")))


def _set(table: TomlTable, key: Sequence[str], value: object) -> None:
    *path, last = key
    place: Any = table
    for part in path:
        index = _index(place, part)
        inner = place.get(index) if isinstance(place, dict) else place[index]
        inner = {} if inner is None else list(inner) if isinstance(inner, tuple) else inner
        if not isinstance(inner, dict | list):
            raise ConfigError(f"{part} is a value, not a table")
        place[index] = inner
        place = inner
    place[_index(place, last)] = value


def _index(place: TomlTable | list[Any], part: str) -> Any:
    if isinstance(place, dict):
        return part
    if not part.isdecimal() or int(part) >= len(place):
        raise ConfigError(f"{part!r} is not one of the items here, 0 to {len(place) - 1}")
    return int(part)


def validate(model: type[Model], table: Mapping[str, object], where: str) -> Model:
    """The typed tree, or a ConfigError with every mistake in the table."""
    try:
        return model.model_validate(_plain(table))
    except ValidationError as error:
        lines = [_describe(details, model) for details in error.errors()]
        raise ConfigError("\n".join(f"{where}: {line}" for line in lines)) from error


def _plain(value: object) -> object:
    """What strict models take: tuples (TOML has arrays only), and int for numpy's integers."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return index(value)
    if isinstance(value, Real) and not isinstance(value, Integral):
        return float(value)
    return value


def _describe(details: ErrorDetails, model: type[BaseModel]) -> str:
    place = [printable(str(part)) for part in details["loc"]]
    key = ".".join(place) or "recipe"
    message = details["msg"].removeprefix("Value error, ")
    match details["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{key}: unknown key{_nearest(place, model)}"
        case "missing":
            return f"{key}: is missing{_EXAMPLES.get(key, '')}"
        case "model_type" | "model_attributes_type" | "dataclass_type":
            return f"{key} = {cut(repr(details['input']))}: {_as_table(key, details, model)}"
        case "tuple_type":
            return f"{key}: must be a list; put what is there in brackets, [...]"
        case "value_error":
            return message if message.startswith(f"{key}.") else f"{key}: {message}"
    return f"{key} = {cut(repr(details['input']))}: {message[:1].lower()}{message[1:]}"


def _as_table(key: str, details: ErrorDetails, model: type[BaseModel]) -> str:
    """What is named by one word stands in a table like all else."""
    known = _fields_at([str(part) for part in details["loc"]], model)
    word = next((name for name in ("name", "kind", "preset") if name in known), None)
    if word is None or not isinstance(details["input"], str):
        return f"must be a table, with the keys {', '.join(known)}"
    return f"must be a table; write {key}.{word} = {details['input']!r}"


def _nearest(place: Sequence[str], model: type[BaseModel]) -> str:
    *above, key = place
    known = _fields_at(above, model)
    inside = [name for name in known if key in _fields_at([*above, name], model)]
    if inside:
        return f"; it is a key of {' and of '.join('.'.join([*above, name]) for name in inside)}"
    return nearest(key, known)


def nearest(key: str, known: Sequence[str]) -> str:
    near = get_close_matches(key, known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known here: {', '.join(known)}" if known else ""


def keys_in(annotation: object) -> list[str]:
    """What a table of this type may have."""
    inner = _class_in(annotation)
    return [] if inner is None else _fields_at((), inner)


def _fields_at(place: Sequence[str], model: type) -> list[str]:
    for part in place:
        if part.isdigit():
            continue
        field = model.model_fields.get(part) if issubclass(model, BaseModel) else None
        inner = _class_in(field.annotation) if field else None
        if inner is None:
            return []
        model = inner
    if is_dataclass(model):
        return [field.name for field in fields(model)]
    return list(model.model_fields) if issubclass(model, BaseModel) else []


def _class_in(annotation: object) -> type | None:
    """The configuration class in an annotation such as ``tuple[DeviceGroup, ...] | None``."""
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or is_dataclass(annotation)
    ):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _class_in(argument)
        if found is not None:
            return found
    return None
