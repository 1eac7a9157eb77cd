"""Image data sets: decoded once to uint8 (samples, channels, height, width), then cached."""

from __future__ import annotations

import gzip
import io
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.data.cache import Tensors, cached
from fedoptima.data.dataset import Augment, Dataset, Kind, Normalise, Split, image_facts, stand_in
from fedoptima.data.finite import class_numbers
from fedoptima.data.layouts import Found, Layout, Part, ReadingProgress, Source, extra, reading
from fedoptima.data.parquet import columns
from fedoptima.data.pictures import eight_bits

_IDX_PREFIX: dict[Part, str] = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE = 0x08

Mode = Literal["RGB", "L"]  # pillow's names for colour and grey


@dataclass(frozen=True, kw_only=True)
class ImageSource(Source[Split]):
    kind: ClassVar[Kind] = "image"
    classes: int | None = None  # None: as many as the files hold, for sets that come as subsets
    shape: tuple[int, int, int]  # of the complete set: channels, height, width
    per_class: tuple[int, ...]  # training samples of each class
    normalise: Normalise
    augment: Augment | None = None

    def load(
        self, directory: str | Path | None, options: Mapping[str, object], progress: ReadingProgress
    ) -> Dataset:
        self.resolve(options)
        found = self.locate(directory)
        tensors = cached(self.name, found.files(), {}, partial(_decode, found, progress))
        return self.assemble(
            Split(tensors["train_inputs"], tensors["train_labels"]),
            Split(tensors["test_inputs"], tensors["test_labels"]),
        )

    def stand_in(self, options: Mapping[str, object]) -> Dataset:
        """The complete set by its facts alone, without its files."""
        self.resolve(options)
        each, more = divmod(self.test, len(self.per_class))
        test = [each + (label < more) for label in range(len(self.per_class))]
        pixels = (stand_in(self.shape, torch.uint8, part) for part in (self.per_class, test))
        return self.assemble(*pixels)

    def assemble(self, train: Split, test: Split) -> Dataset:
        classes = self.classes or 1 + int(max(train.labels.max(), test.labels.max()))
        return Dataset(
            name=self.name,
            kind=self.kind,
            train=train,
            test=test,
            classes=classes,
            facts=image_facts(train.tensor, classes),
            prepare=self.normalise,
            augment=self.augment,
        )


def _decode(found: Found[Split], progress: ReadingProgress) -> Tensors:
    train, test = found.read("train", progress), found.read("test", progress)
    return {
        "train_inputs": train.tensor,
        "train_labels": train.labels,
        "test_inputs": test.tensor,
        "test_labels": test.labels,
    }


def parquet_images(mode: Mode, *folders: str) -> Layout[Split]:
    """Columns ``img`` or ``image`` (a struct with the file's ``bytes``) and ``label``."""
    return Layout(folders, ("train-*.parquet", "*.parquet"), partial(_read_parquet, mode))


def _read_parquet(mode: Mode, folder: Path, part: Part, progress: ReadingProgress) -> Split:
    inputs: list[Tensor] = []
    labels: list[object] = []
    for path, (images, shard_labels) in columns(folder, part, [("img", "image"), ("label",)]):
        encoded = [(path, _file_in(image, path)) for image in images]
        inputs.append(decode(encoded, mode, progress))
        labels.extend(shard_labels)
    with reading(folder):
        return Split(torch.cat(inputs), class_numbers(labels, str(folder)))


def _file_in(image: object, path: Path) -> io.BytesIO:
    match image:
        case {"bytes": bytes(content)}:
            return io.BytesIO(content)
    raise ConfigError(f"{path}: an image is {type(image).__name__}, not a struct with 'bytes'")


def decode(
    encoded: Sequence[tuple[Path, Path | io.BytesIO]],
    mode: Mode,
    progress: ReadingProgress,
    *,
    size: int | None = None,
    way_out: str = "",
) -> Tensor:
    """Image files of one size to one tensor; each comes with the path to blame if it is bad.

    ``size``: they are resized to squares of that many pixels. ``way_out``: if sizes differ.
    """
    with extra("pillow"):
        from PIL import Image, ImageOps

    pixels: NDArray[np.uint8] | None = None
    for row, (path, source) in enumerate(encoded):
        with reading(path), Image.open(source) as image:
            picture = eight_bits(image, str(path)).convert(mode)
            if size is not None:
                # As the camera was held.
                upright = eight_bits(ImageOps.exif_transpose(image), str(path)).convert(mode)
                picture = upright.resize((size, size), Image.Resampling.BILINEAR)
            decoded = np.atleast_3d(np.asarray(picture))
        if pixels is None:
            pixels = np.empty((len(encoded), *decoded.shape), dtype=np.uint8)
        if decoded.shape != pixels.shape[1:]:
            raise ConfigError(
                f"{path}: image {row} is {decoded.shape[1]}x{decoded.shape[0]}, the images before "
                f"it are {pixels.shape[2]}x{pixels.shape[1]}; all must have one size{way_out}"
            )
        pixels[row] = decoded
        if (row + 1) % 1000 == 0 or row + 1 == len(encoded):
            progress(f"decoding {path.name}", row + 1, len(encoded))
    if pixels is None:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def read_tiny_imagenet_200(folder: Path, part: Part, progress: ReadingProgress) -> Split:
    """The folders of the original download; classes are numbered in the order of sorted ids."""
    ids_file = folder / "wnids.txt"
    with reading(ids_file):
        ids = sorted(ids_file.read_text(encoding="utf-8").split())
    label_of = {wnid: label for label, wnid in enumerate(ids)}
    rows = _training_files(folder, ids) if part == "train" else _validation_files(folder)
    unknown = next((wnid for _, wnid in rows if wnid not in label_of), None)
    if unknown is not None:
        raise ConfigError(f"{ids_file}: does not list class {unknown!r}, which has images")
    if not rows:
        raise ConfigError(f"{folder}: holds no images of its {part} part; unpack it again")
    inputs = decode([(path, path) for path, _ in rows], "RGB", progress)
    return Split(inputs, torch.tensor([label_of[wnid] for _, wnid in rows]))


def _training_files(folder: Path, ids: list[str]) -> list[tuple[Path, str]]:
    return [
        (path, wnid)
        for wnid in ids
        for path in sorted((folder / "train" / wnid / "images").glob("*.JPEG"), key=_number)
    ]


def _validation_files(folder: Path) -> list[tuple[Path, str]]:
    table = folder / "val" / "val_annotations.txt"
    with reading(table):
        lines = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
        return [(folder / "val" / "images" / name, wnid) for name, wnid, *_ in lines]


def _number(path: Path) -> tuple[int, str]:
    """n01443537_10.JPEG comes after n01443537_9.JPEG."""
    digits = path.stem.rpartition("_")[2]
    return (int(digits) if digits.isdecimal() else -1, path.name)


TINY_IMAGENET_200: Layout[Split] = Layout(
    ("tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200", "tiny_imagenet/tiny-imagenet-200"),
    ("wnids.txt", "val/val_annotations.txt", "train/*/images/*.JPEG", "val/images/*.JPEG"),
    read_tiny_imagenet_200,
)


# ---- idx: the files of MNIST and Fashion-MNIST, compressed or not: a header, then bytes ----------


def idx_images(*folders: str) -> Layout[Split]:
    return Layout(folders, ("train-images?idx3-ubyte*", "*?idx?-ubyte*"), _read_idx)


def _read_idx(folder: Path, part: Part, progress: ReadingProgress) -> Split:
    prefix = _IDX_PREFIX[part]
    images = _idx_array(_idx_file(folder, f"{prefix}-images", 3), dimensions=3)
    progress(f"reading {prefix}", 1, 2)
    labels = _idx_array(_idx_file(folder, f"{prefix}-labels", 1), dimensions=1)
    progress(f"reading {prefix}", 2, 2)
    return Split(images.unsqueeze(1), labels.to(torch.int64))


def _idx_file(folder: Path, stem: str, dimensions: int) -> Path:
    pattern = f"{stem}?idx{dimensions}-ubyte"  # both "-idx3-" and ".idx3-" are in circulation
    for path in (*sorted(folder.glob(pattern)), *sorted(folder.glob(f"{pattern}.gz"))):
        return path
    raise ConfigError(
        f"{folder / f'{stem}-idx{dimensions}-ubyte'}: is missing (with or without .gz); "
        "unpack the data set again"
    )


def _idx_array(path: Path, *, dimensions: int) -> Tensor:
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
