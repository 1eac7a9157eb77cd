"""Every data set in every layout, with a handful of samples, written where a test wants it."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

SENTENCES = [
    ('a "fine" film ', 1),
    ("it 's dull\x85and dull ", 0),
    ("great fun ", 1),
    ("no fun at all ", 0),
]
DEV_SENTENCES = [("a great surprise ", 1), ("dull ", 0)]
REVIEWS = {
    ("train", "neg"): {"10_2": "worst<br /><br />ever", "9_1": "bad"},
    ("train", "pos"): {"0_9": "Good GOOD good", "1_10": "nice"},
    ("test", "neg"): {"0_1": "bad surprise"},
    ("test", "pos"): {"0_8": "good"},
}


def pixels(count: int, *shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def encoded(image: Pixels, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind)
    return buffer.getvalue()


def image_parquet(path: Path, images: Pixels, labels: list[int], column: str = "img") -> None:
    """``images`` are (count, height, width, 3) or (count, height, width)."""
    rows = [{"bytes": encoded(image), "path": str(row)} for row, image in enumerate(images)]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({column: rows, "label": labels}), path)


def cifar_parquet(root: Path) -> None:
    images, labels = cifar()
    image_parquet(root / "cifar10/train-00000-of-00002.parquet", images[:6], labels[:6])
    image_parquet(root / "cifar10/train-00001-of-00002.parquet", images[6:10], labels[6:10])
    image_parquet(root / "cifar10/test-00000-of-00001.parquet", images[10:], labels[10:])


def cifar_batches(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    images, labels = cifar()
    flat = images.transpose(0, 3, 1, 2).reshape(12, 3072)
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    for number, name in enumerate(names):
        rows = slice(2 * number, 2 * number + 2)
        content = {b"data": flat[rows], b"labels": labels[rows], b"batch_label": b"one"}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def cifar() -> tuple[Pixels, list[int]]:
    """Ten training images, then two test images."""
    return pixels(12, 32, 32, 3), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def idx(folder: Path, *, compressed: bool) -> None:
    images, labels = grey()
    _write_idx(folder / "train-images-idx3-ubyte", images[:4], compressed)
    _write_idx(folder / "train-labels-idx1-ubyte", np.array(labels[:4], np.uint8), compressed)
    _write_idx(folder / "t10k-images-idx3-ubyte", images[4:], compressed)
    _write_idx(folder / "t10k-labels-idx1-ubyte", np.array(labels[4:], np.uint8), compressed)


def grey() -> tuple[Pixels, list[int]]:
    """Four training images, then two test images."""
    return pixels(6, 28, 28), [5, 0, 4, 1, 9, 2]


def _write_idx(path: Path, values: Pixels, compressed: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = np.array(values.shape, dtype=">u4").tobytes()
    content = bytes((0, 0, 8, values.ndim)) + shape + values.tobytes()
    if compressed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def tiny_imagenet_200(root: Path) -> None:
    """Three classes, ids not in sorted order in the list, one image grey; plain colours,
    because JPEG keeps them (nearly)."""
    folder = root / "tiny-imagenet-200"
    for level, wnid in enumerate(("n01", "n02", "n03")):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for number in (0, 2, 10):
            colour = np.full((64, 64, 3), 40 * (level + 1) + number, np.uint8)
            (images / f"{wnid}_{number}.JPEG").write_bytes(encoded(colour, "JPEG"))
    flat = np.full((64, 64), 200, np.uint8)
    (folder / "train/n03/images/n03_10.JPEG").write_bytes(encoded(flat, "JPEG"))
    (folder / "val/images").mkdir(parents=True)
    for number in range(2):
        (folder / f"val/images/val_{number}.JPEG").write_bytes(encoded(flat, "JPEG"))
    (folder / "wnids.txt").write_text("n03\nn01\nn02\n")
    (folder / "val/val_annotations.txt").write_text(
        "val_0.JPEG\tn03\t0\t0\t62\t62\nval_1.JPEG\tn01\t5\t5\t60\t60\n"
    )


def tiny_parquet(root: Path) -> None:
    folder = root / "tiny-imagenet"
    image_parquet(folder / "train-00000-of-00001.parquet", pixels(3, 64, 64, 3), [0, 1, 2], "image")
    image_parquet(folder / "valid-00000-of-00001.parquet", pixels(1, 64, 64, seed=1), [2], "image")


def sst2_parquet(root: Path) -> None:
    for name, rows in (("train", SENTENCES), ("validation", DEV_SENTENCES)):
        text_parquet(root / f"sst2/{name}-00000-of-00001.parquet", "sentence", rows)


def sst2_tsv(root: Path) -> None:
    (root / "SST-2").mkdir(parents=True)
    for name, rows in (("train", SENTENCES), ("dev", DEV_SENTENCES)):
        lines = "".join(f"{text}\t{label}\n" for text, label in rows)
        path = root / "SST-2" / f"{name}.tsv"
        path.write_bytes(b"sentence\tlabel\n" + lines.encode())


def imdb_parquet(root: Path) -> None:
    for part in ("train", "test"):
        rows = []
        for label, name in enumerate(("neg", "pos")):
            reviews = REVIEWS[part, name]
            for key in sorted(reviews, key=lambda key: int(key.partition("_")[0])):
                rows.append((reviews[key], label))
        text_parquet(root / f"imdb/{part}-00000-of-00001.parquet", "text", rows)


def acl_imdb(root: Path) -> None:
    for (part, name), reviews in REVIEWS.items():
        folder = root / "aclImdb" / part / name
        folder.mkdir(parents=True)
        for key, text in reviews.items():
            (folder / f"{key}.txt").write_text(text)


def text_parquet(path: Path, column: str, rows: list[tuple[str, int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts, labels = [text for text, _ in rows], [label for _, label in rows]
    pq.write_table(pa.table({column: texts, "label": labels}), path)
