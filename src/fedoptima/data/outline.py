"""What is known about a data set of our own without its samples, and without torch.

The facts of complete sets are stored with the package: ``python -m tools.stored_costs --write``
writes them from `data.registry`, and tests/data/test_outline.py compares. For a set on disk that
was read before, its decoded form says what it holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from fedoptima.data.cache import decoded
from fedoptima.data.layouts import (
    HIDDEN_WORDS,
    Found,
    Layout,
    Part,
    ReadingProgress,
    Source,
    of_the_files,
)

FILE = "outlines.json"
_RESERVED = 2  # ids before the first word's


@dataclass(frozen=True)
class Outline:
    facts: Mapping[str, int]  # what a model's builder needs to know
    per_class: tuple[int, ...]  # training samples
    assumed: str | None = None  # what a user should know, where the set is not on disk

    def kept_for_training(self, held_out: float) -> int | None:
        """Samples left when a share of each class is held out; None: that is no valid share."""
        if not 0 < held_out < 1:
            return None
        held = (min(round(held_out * count), count - 1) for count in self.per_class)
        taken = sum(max(0, count) for count in held)
        return sum(self.per_class) - taken if taken else None


def outline(
    name: str, directory: str | Path | None, options: Mapping[str, object]
) -> Outline | None:
    """None: this data set has to be read."""
    stored = _stored().get(name.replace("-", "_"))
    if stored is None:
        return None
    if "vocabulary" in stored["defaults"] and _is_share(options.get(HIDDEN_WORDS, 0.0)):
        options = of_the_files(options)
    chosen = {**stored["defaults"], **options}
    complete = next((each for each in stored["complete"] if each["options"] == chosen), None)
    if complete is None:
        return None
    source = _source(name.replace("-", "_"), stored)
    found = source.find(directory)
    if found is not None:
        return _read_before(source.name, found, chosen, stored["classes"])
    return Outline(complete["facts"], tuple(complete["per_class"]), source.assumption(directory))


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def even_parts(samples: int, devices: int) -> list[int] | None:
    """How many samples each device gets, IID or not; None: some would get none.

    Devices take turns in both, so that only the labels of a part depend on the labels.
    """
    if not 1 <= devices <= samples:
        return None
    each, more = divmod(samples, devices)
    return [each + (device < more) for device in range(devices)]


def _read_before(
    name: str, found: Found[None], options: Mapping[str, int | float | str], classes: int | None
) -> Outline | None:
    """From the header and the labels of its decoded form."""
    import numpy as np
    from safetensors import SafetensorError, safe_open

    with (
        suppress(OSError, SafetensorError),
        safe_open(decoded(name, found.files(), options), framework="np") as file,
    ):
        train, test = file.get_tensor("train_labels"), file.get_tensor("test_labels")
        classes = classes or 1 + int(max(train.max(), test.max()))
        shape = file.get_slice("train_inputs").get_shape()
        if options:
            ids = bytes(file.get_tensor("words")).count(b"\n") + 1 + _RESERVED
            facts = {"vocabulary": ids, "length": shape[1], "classes": classes}
        else:
            facts = {"channels": shape[1], "image_size": shape[2], "classes": classes}
        return Outline(facts, tuple(np.bincount(train, minlength=classes).tolist()))
    return None


def _source(name: str, stored: Mapping[str, Any]) -> Source[None]:
    return Source(
        name=name,
        description="",
        train=stored["train"],
        test=0,
        home="",
        layouts=tuple(
            Layout(tuple(folders), tuple(files), _nothing) for folders, files in stored["layouts"]
        ),
        comes_with=stored["comes_with"],
    )


def _nothing(folder: Path, part: Part, progress: ReadingProgress) -> None:
    """Nothing is read here."""


@cache
def _stored() -> dict[str, dict[str, Any]]:
    text = (resources.files("fedoptima.data") / FILE).read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found
