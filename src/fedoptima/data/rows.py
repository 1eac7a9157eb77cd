"""Samples that are rows of named columns: Hugging Face's, and dicts of any other dataset.

A row becomes (x, y): its label, and the columns that the model takes. One column is one input,
several columns of single numbers are one vector, other columns are inputs by name (``model(**x)``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.data.finite import in_words
from fedoptima.data.pictures import eight_bits

_LABELS = ("label", "labels")
_TOKENS = ("input_ids", "attention_mask", "token_type_ids")  # in the order of BERT's arguments
_PIXELS = "pixel_values"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """Which columns are used; those that are left open are chosen by the usual names."""

    features: tuple[str, ...] = ()
    label: str | None = None
    besides: tuple[str, ...] = ()  # columns that are no features unless they are named

    def pair(self, row: Row, where: str) -> tuple[object, object]:
        label = self.label_of(row, where)
        for name in (*self.features, label):
            if name not in row:
                raise ConfigError(f"{where}: has no column {name!r}; it has {in_words(list(row))}")
        names = self.features or self._usual_features(row, label, where)
        values = [_value(row[name], f"{where}: column {name!r}") for name in names]
        if len(values) == 1:
            return values[0], _label(row[label], where)
        if all(np.ndim(value) == 0 for value in values):  # type: ignore[arg-type]
            return np.array(values, dtype=np.float32), _label(row[label], where)
        return dict(zip(names, values, strict=True)), _label(row[label], where)

    def is_row(self, value: object) -> bool:
        """Does it have a label? The first of a list of two samples has, inputs have not."""
        names = _LABELS if self.label is None else (self.label,)
        return isinstance(value, Mapping) and any(name in value for name in names)

    def label_of(self, row: Row, where: str) -> str:
        if self.label is not None:
            return self.label
        for name in _LABELS:
            if name in row:
                return name
        raise ConfigError(
            f"{where}: none of the columns {in_words(list(row))} is called 'label'; name it: "
            f"data={{'label': {next(iter(row), 'label')!r}}}"
        )

    def _usual_features(self, row: Row, label: str, where: str) -> Sequence[str]:
        if _TOKENS[0] in row:
            return [name for name in _TOKENS if name in row]
        if _PIXELS in row:
            return [_PIXELS]
        others = [name for name in row if name != label and name not in self.besides]
        pictures = [name for name in others if _is_picture(row[name])]
        numbers = [name for name in others if not isinstance(row[name], str | bytes | None)]
        for found in (pictures, numbers):
            if len(found) == 1:
                return found
        if not numbers:
            _value(row[others[0]] if others else "", f"{where}: column {next(iter(others), '')!r}")
        raise ConfigError(
            f"{where}: columns {in_words(others)}: name those that the model takes, for example "
            f"data={{'features': [{numbers[0]!r}]}}"
        )


def _value(value: object, where: str) -> object:
    if _is_picture(value):
        return _pixels(value, where)
    if isinstance(value, str | bytes) or value is None:
        kind = "text" if isinstance(value, str) else type(value).__name__
        raise ConfigError(
            f"{where} holds {kind}; turn it into numbers first (text: tokenise it), or name other "
            "columns with data={'features': [...]}"
        )
    return value


def _label(value: object, where: str) -> object:
    if isinstance(value, str):
        raise ConfigError(
            f"{where}: the label is the text {value!r:.40}; number the classes first (Hugging "
            "Face: dataset.class_encode_column(...))"
        )
    return value


def _is_picture(value: object) -> bool:
    """One of pillow's, which is not imported for this."""
    return any(kind.__module__ == "PIL.Image" for kind in type(value).__mro__)


def _pixels(picture: Any, where: str) -> NDArray[np.uint8]:
    """(channels, height, width): grey pictures have one channel, all others three."""
    plain = eight_bits(picture, where)
    plain = plain if plain.mode in ("L", "RGB") else plain.convert("RGB")
    pixels: NDArray[np.uint8] = np.asarray(plain)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


# ---- Hugging Face, by its attributes: `datasets` is not imported for this ------------------------


def is_dataset_dict(data: object) -> bool:
    """Parts by name: a DatasetDict or IterableDatasetDict."""
    return isinstance(data, Mapping) and _is_hugging_face(data)


def columns_of(data: Any) -> tuple[tuple[str, ...], Any] | None:
    """The names of its columns, and where each is found by its name; None: it has none."""
    if not _is_hugging_face(data) or not hasattr(data, "with_format"):
        return None
    if not hasattr(data, "__getitem__") or data.column_names is None:  # a stream, which was mapped
        return None
    return tuple(data.column_names), data.with_format(None)  # without the user's transforms


def known_classes(data: Any, choice: Choice) -> int | None:
    """As many as its label column has names for."""
    features = getattr(data, "features", None)
    if not _is_hugging_face(data) or not features:
        return None
    named = features.get(choice.label) if choice.label else None
    named = named or next((features[name] for name in _LABELS if name in features), None)
    count = getattr(named, "num_classes", None)
    return count if isinstance(count, int) else None


def _is_hugging_face(data: object) -> bool:
    return any(kind.__module__.partition(".")[0] == "datasets" for kind in type(data).__mro__)


def without_batch(batch: Any) -> Any:
    """The only sample of a batch."""
    if isinstance(batch, Mapping):
        return {name: without_batch(value) for name, value in batch.items()}
    if isinstance(batch, Tensor | np.ndarray):
        return batch[0]
    if isinstance(batch, tuple | list):
        whole = all(
            isinstance(part, Tensor | np.ndarray | Mapping | tuple | list) for part in batch
        )
        return tuple(without_batch(part) for part in batch) if whole else batch[0]
    return batch
