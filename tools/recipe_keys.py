"""Every key of a recipe, with its meaning, from the schema.

The meanings are the schema's own: `Field(description=..., examples=[...])` of a field in
config/, of a method's option in methods/, or a line in the `OPTIONS`
of models/registry.py and data/text.py.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedoptima.config.schema import Recipe
from fedoptima.data import text
from fedoptima.data.registry import DATASETS, OWN_FILES
from fedoptima.methods.registry import METHODS, method_options
from fedoptima.models import registry as models


@dataclass(frozen=True)
class Key:
    name: str
    kind: str
    default: object  # PydanticUndefined: the key is required
    meaning: str
    example: object
    accepts: Any = None  # the type that an example has to have

    @property
    def missing(self) -> list[str]:
        """What its author forgot."""
        example = [] if self.example not in (None, PydanticUndefined) else ["example"]
        return ([] if self.meaning else ["meaning"]) + example


@dataclass
class Section:
    title: str
    about: str
    source: str  # where a meaning is to be written
    how: str = "Field(description='what it means', examples=[a value])"
    keys: list[Key] = field(default_factory=list)


def sections() -> list[Section]:
    found = tables(Recipe)
    after = next(i for i, section in enumerate(found) if section.title == "`[method]`")
    found[after + 1 : after + 1] = [*map(_method, METHODS), *_method_tables()]
    after = next(i for i, section in enumerate(found) if section.title == "`[data]`")
    found[after + 1 : after + 1] = [*_dataset_options()]
    after = next(i for i, section in enumerate(found) if section.title == "`[model]`")
    found[after + 1 : after + 1] = [*_model_options()]
    return found


# ---- the schema ----------------------------------------------------------------------------------


def tables(model: type, path: str = "") -> list[Section]:
    """The table at ``path`` and those in it; tables of the same kind are shown once."""
    own = Section(_title(path, model), _about(model), f"{model.__module__}:{model.__qualname__}")
    found = [own]
    for name, info in _fields(model).items():
        own.keys.append(_key(name, info))
        inner = _table_in(info.annotation)
        if inner is None:
            continue
        place, listed = f"{path}.{name}".lstrip("."), _is_list(info.annotation)
        if get_origin(info.annotation) is dict:
            place = f"{place}.NAME"
        brackets = f"`[[{place}]]`" if listed else f"`[{place}]`"
        for section in tables(inner, place):
            if section.source == f"{inner.__module__}:{inner.__qualname__}":
                section.title = brackets
            same = next((s for s in found if s.source == section.source), None)
            if same is None:
                found.append(section)
            else:
                same.title += f", {section.title}"
    return found


def _title(path: str, model: type) -> str:
    return f"`[{path}]`" if path else "The recipe"


def _about(model: type) -> str:
    about = " ".join((inspect.getdoc(model) or "").split()).replace("``", "`")
    return "" if model is Recipe else about


def _fields(model: type) -> dict[str, FieldInfo]:
    """Of a schema class, or of a dataclass that stands for a table."""
    if issubclass(model, BaseModel):
        return dict(model.model_fields)
    hints = get_type_hints(model, include_extras=True)
    return {
        item.name: FieldInfo.from_annotated_attribute(hints[item.name], item)
        for item in fields(model)
    }


def _key(name: str, info: FieldInfo) -> Key:
    default = info.get_default(call_default_factory=True, validated_data={})
    example = info.examples[0] if info.examples else default
    if isinstance(example, BaseModel):
        example = example.model_dump()
    bounds = _bounds(info.metadata)
    accepts = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
    kind = f"{_kind(info.annotation)}{bounds}"
    return Key(name, kind, default, info.description or "", example, accepts)


def _table_in(annotation: object) -> type | None:
    """The class of a table in an annotation such as ``tuple[DeviceGroup, ...] | None``."""
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or is_dataclass(annotation)
    ):
        return annotation
    return next((t for t in map(_table_in, get_args(annotation)) if t is not None), None)


def _is_list(annotation: object) -> bool:
    return get_origin(annotation) is tuple or any(map(_is_list, get_args(annotation)))


_PLAIN = {int: "whole number", float: "number", str: "text", bool: "true or false"}


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return f"{_kind(arguments[0])}{_bounds(arguments[1:])}"
    if origin is Literal:
        return ", ".join(f"`{toml(value)}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_kind(a) for a in arguments if a is not NoneType)
    if origin is tuple:
        several = arguments[-1] is Ellipsis
        return f"list of {_kind(arguments[0])}s" if several else f"list of {len(arguments)} numbers"
    if origin is dict:
        return f"table: {_kind(arguments[0])} = {_kind(arguments[1])}"
    return _PLAIN.get(annotation, "table")


_SIGNS = {"gt": "above", "ge": "from", "lt": "below", "le": "to"}


def _bounds(metadata: object) -> str:
    words = []
    for item in metadata if isinstance(metadata, list | tuple) else ():
        inner = item.metadata if isinstance(item, FieldInfo) else [item]
        for bound in inner:
            words += [
                f"{word} {getattr(bound, sign):g}"
                for sign, word in _SIGNS.items()
                if isinstance(getattr(bound, sign, None), int | float)
            ]
    return f" {' '.join(words)}" if words else ""


# ---- what is named in a recipe, and its options --------------------------------------------------


def _method(name: str) -> Section:
    build = METHODS[name]
    about = (inspect.getdoc(inspect.getmodule(build)) or "").splitlines()[0]
    section = Section(f'`[method]` with `name = "{name}"`', about, f"methods/{name}.py:{name}")
    hints = get_type_hints(build, include_extras=True)
    for option, default in method_options(name).items():
        info = FieldInfo.from_annotated_attribute(hints[option], default)
        section.keys.append(_key(option, info))
    return section


def _method_tables() -> Iterator[Section]:
    """Options of methods that are tables; one that several methods have is shown once."""
    shown: dict[str, type] = {}
    for build in METHODS.values():
        for option, hint in get_type_hints(build, include_extras=True).items():
            inner = None if option == "return" else _table_in(hint)
            if inner is not None:
                shown[option] = inner
    for option, inner in shown.items():
        yield from tables(inner, f"method.{option}")


FROM_THE_DATA = "the data's"
_FACTS = {
    "channels": 3,
    "image_size": 32,
    "classes": 10,
    "vocabulary": 16000,
    "length": 48,
    "features": 12,
}
_HEADS_OR_LAYERS = 4


def _model_options() -> Iterator[Section]:
    for name, entry in models.MODELS.items():
        fixed = entry.builder.keywords if isinstance(entry.builder, partial) else {}
        parameters = inspect.signature(entry.builder, eval_str=True).parameters
        section = Section(
            f'`[model]` with `name = "{name}"`',
            (inspect.getdoc(entry.builder) or "").splitlines()[0].replace("``", "`")
            if not fixed
            else f"`transformer` with {', '.join(f'{k} = {v}' for k, v in fixed.items())}.",
            "models/registry.py:OPTIONS",
            "a line",
        )
        for option, parameter in parameters.items():
            if option in fixed:
                continue
            default, meaning = parameter.default, models.OPTIONS.get(option, "")
            if option in _FACTS:
                default, example = FROM_THE_DATA, _FACTS[option]
            elif default is parameter.empty:
                default, example = PydanticUndefined, _HEADS_OR_LAYERS
            else:
                example = default
            kind = _kind(parameter.annotation)
            section.keys.append(Key(option, kind, default, meaning, example, parameter.annotation))
        yield section


def _dataset_options() -> Iterator[Section]:
    for name, source in DATASETS.items():
        defaults: Mapping[str, object] = getattr(source, "defaults", {})
        if not defaults:
            continue
        title = f'`[data]` with `name = "{name}"`'
        section = Section(
            title, f"{source.description}.".capitalize(), "data/text.py:OPTIONS", "a line"
        )
        for option, default in defaults.items():
            kind, meaning = _kind(type(default)), text.OPTIONS.get(option, "")
            section.keys.append(Key(option, kind, default, meaning, default, type(default)))
        yield section
    for name, files in OWN_FILES.items():
        title = f'`[data]` with `name = "{name}"`'
        where = f"{files.options.__module__.replace('.', '/')}.py:{files.options.__name__}"
        section = Section(title, f"{files.description}.".capitalize(), where)
        section.keys += [_key(key, info) for key, info in files.options.model_fields.items()]
        yield section


def toml(value: object) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key} = {toml(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)
