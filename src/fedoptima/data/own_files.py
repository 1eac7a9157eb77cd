"""A user's own files as data sets, by name: options that several of them share, and their checks.

Paths are inside a data directory: the same recipe then works on a device, which has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.core.seeding import derive
from fedoptima.data.finite import in_words
from fedoptima.data.layouts import data_directories, did_you_mean
from fedoptima.data.partition import stratified


class FileOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    test_share: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="Share of each class that becomes test data, where there is no test part.",
    )
    classes: tuple[str, ...] = Field(
        default=(),
        description="Their names in the order of their numbers; unset: those in the data, sorted. "
        "A server sends its own to its devices.",
        examples=[["cat", "dog"]],
    )


Options = TypeVar("Options", bound=FileOptions)


def checked(kind: type[Options], given: Mapping[str, object]) -> Options:
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        found = error.errors()[0]
        key = ".".join(str(part) for part in found["loc"])
        known = kind.model_fields
        if found["type"] == "extra_forbidden":
            hint = did_you_mean(key, known)
            raise ConfigError(
                f"data.{key}: unknown option{hint}; there are {', '.join(known)}"
            ) from error
        if found["type"] == "missing":
            raise ConfigError(f"data.{key}: is missing; {known[key].description}") from error
        message = f"{found['msg'][:1].lower()}{found['msg'][1:]}"
        raise ConfigError(f"data.{key} = {found['input']!r:.80}: {message}") from error


def located(key: str, path: str, directory: str | Path | None) -> Path:
    """The first data directory's file or folder of this name."""
    if PurePath(path).is_absolute() or ".." in PurePath(path).parts:
        parent, name = Path(path).parent, Path(path).name
        raise ConfigError(
            f"data.{key} = {path!r}: must be inside the data directory, because each device has "
            f"its own; set data.directory = {str(parent)!r} and data.{key} = {name!r}"
        )
    places = [folder / path for folder in data_directories(directory)]
    for place in places:
        if place.exists():
            return place
    raise ConfigError(
        f"data.{key} = {path!r}: was not found. Looked for {in_words(places)}; set data.directory "
        "(or FEDOPTIMA_DATA) to the directory that holds it"
    )


def numbered(labels: Sequence[str], names: Sequence[str], where: str) -> Tensor:
    """Class numbers of these labels."""
    number = {name: index for index, name in enumerate(names)}
    unknown = next((label for label in labels if label not in number), None)
    if unknown is not None:
        raise ConfigError(
            f"{where}: the label {unknown!r} is none of data.classes, {in_words(names)}; add it "
            "there"
        )
    return torch.tensor([number[label] for label in labels], dtype=torch.int64)


def names_of(labels: Sequence[str], chosen: tuple[str, ...]) -> tuple[str, ...]:
    """The classes that were named, or all there are: numbers in their order, other names sorted."""
    if chosen:
        return chosen
    distinct = set(labels)
    try:
        return tuple(sorted(distinct, key=float))
    except ValueError:
        return tuple(sorted(distinct))


def parted(labels: Tensor, share: float, where: str) -> tuple[Tensor, Tensor]:
    """Rows for training and for the test; the same on every machine."""
    test = stratified(labels, share, derive(0, "test share"))
    if not test.any():
        raise ConfigError(
            f"{where}: a test share of {share:g} leaves no sample of the {len(labels)} for the "
            "test; set data.test_share, or give test data of their own"
        )
    return torch.nonzero(~test).flatten(), torch.nonzero(test).flatten()
