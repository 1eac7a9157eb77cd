"""The idx files of MNIST and Fashion-MNIST, compressed or not: a header, then bytes."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Split
from fedoptima.data.layouts import Layout, Part, ReadingProgress, reading

_PREFIX: dict[Part, str] = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE = 0x08


def idx_images(*folders: str) -> Layout[Split]:
    return Layout(folders, ("train-images?idx3-ubyte*", "*?idx?-ubyte*"), _read)


def _read(folder: Path, part: Part, progress: ReadingProgress) -> Split:
    prefix = _PREFIX[part]
    images = _array(_file(folder, f"{prefix}-images", 3), dimensions=3)
    progress(f"reading {prefix}", 1, 2)
    labels = _array(_file(folder, f"{prefix}-labels", 1), dimensions=1)
    progress(f"reading {prefix}", 2, 2)
    return Split(images.unsqueeze(1), labels.to(torch.int64))


def _file(folder: Path, stem: str, dimensions: int) -> Path:
    pattern = f"{stem}?idx{dimensions}-ubyte"  # both "-idx3-" and ".idx3-" are in circulation
    for path in (*sorted(folder.glob(pattern)), *sorted(folder.glob(f"{pattern}.gz"))):
        return path
    raise ConfigError(
        f"{folder / f'{stem}-idx{dimensions}-ubyte'}: is missing (with or without .gz); "
        "unpack the data set again"
    )


def _array(path: Path, *, dimensions: int) -> Tensor:
    with reading(path):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        header = 4 * (1 + dimensions)
        if content[:4] != bytes((0, 0, _UNSIGNED_BYTE, dimensions)) or len(content) < header:
            raise ValueError(f"not an idx file of bytes in {dimensions} dimensions")
        shape = struct.unpack(f">{dimensions}I", content[4:header])
        if len(content) - header != math.prod(shape):
            raise ValueError(f"{len(content) - header} bytes where the header promises {shape}")
        values = np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)
        return torch.from_numpy(values.copy())
