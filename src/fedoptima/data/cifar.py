"""CIFAR-10 as its authors publish it: pickled batches, read without trusting the pickle.

A pickle may name any function to be called. Here only the three names that a pickled array of
bytes needs are allowed, and even they build inert records, so the file cannot run any code.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Split
from fedoptima.data.finite import class_numbers
from fedoptima.data.layouts import Layout, Part, ReadingProgress, reading

_FILES: dict[Part, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
_SHAPE = (3, 32, 32)


class _PickledType:
    """Stands for numpy.dtype."""

    def __init__(self, code: str | bytes, *_flags: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: without meaning for single bytes, the only type accepted."""


class _PickledArray:
    """Stands for numpy.ndarray; its state is (version, shape, type, column-major, bytes)."""

    def __init__(self, *_arguments: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def pixels(self) -> Tensor:
        match self.state:
            case (_, (int(rows), int(_)), _PickledType(code="u1" | b"u1"), False, bytes(raw)):
                values = np.frombuffer(raw, dtype=np.uint8).reshape(rows, *_SHAPE)
                return torch.from_numpy(values.copy())
        raise ValueError("'data' is not an array of bytes, 3072 for each image")


def _latin1(text: str, encoding: str) -> bytes:
    """Stands for codecs.encode, by which Python 3 pickles bytes in the old protocols."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed here")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], object] = {
    ("numpy", "dtype"): _PickledType,
    ("numpy", "ndarray"): _PickledArray,
    ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
    ("_codecs", "encode"): _latin1,
}


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str) -> object:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed here") from None


def read_batches(folder: Path, part: Part, progress: ReadingProgress) -> Split:
    names = _FILES[part]
    batches = []
    for done, name in enumerate(names, start=1):
        batches.append(_read_batch(folder / name))
        progress(f"reading {name}", done, len(names))
    return Split(
        torch.cat([batch.tensor for batch in batches]),
        torch.cat([batch.labels for batch in batches]),
    )


def _read_batch(path: Path) -> Split:
    with reading(path), path.open("rb") as file:
        try:
            content = _ArraysOnly(file).load()
        except (AttributeError, MemoryError, OverflowError) as error:  # damage can raise these too
            raise pickle.UnpicklingError(str(error)) from error
        fields = {key.decode() if isinstance(key, bytes) else key: content[key] for key in content}
        data, labels = fields["data"], fields["labels"]
        if not isinstance(data, _PickledArray):
            raise ValueError("'data' is not an array")
        batch = Split(data.pixels(), class_numbers(labels, str(path)))
    if len(batch.inputs) != len(batch.labels):
        raise ConfigError(
            f"{path}: {len(batch.inputs)} images but {len(batch.labels)} labels; get it again"
        )
    return batch


CIFAR_10_BATCHES_PY: Layout[Split] = Layout(
    ("cifar-10-batches-py", "cifar10/cifar-10-batches-py"),
    ("data_batch_1", "data_batch_?", "test_batch"),
    read_batches,
)
