"""``data.name = "image_folder"``: a folder for each class with its images.

Either the folders of the classes, or ``train`` and ``test`` (also ``val``) with them inside.
Folders inside a class's folder, such as one for each person, are the column "folder".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.data.cache import cached
from fedoptima.data.columns import Columns
from fedoptima.data.dataset import Dataset, Normalise, Split, image_facts
from fedoptima.data.images import decode
from fedoptima.data.layouts import ReadingProgress
from fedoptima.data.own_files import FileOptions, checked, located, names_of, numbered, parted
from fedoptima.data.use import Use

FOLDER = "folder"
_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
_TEST_FOLDERS = ("test", "val", "validation", "valid")
_WAY_OUT = "; set data.size to resize them, for example data.size = 64"


class ImageFolderOptions(FileOptions):
    folder: str = Field(
        default=".",
        description="The folder with the images, inside the data directory.",
        examples=["pets"],
    )
    size: int | None = Field(
        default=None,
        ge=1,
        description="Pixels of a side: images are resized to squares. Unset: all are squares of "
        "one size already.",
        examples=[64],
    )
    channels: Literal[1, 3] = Field(default=3, description="3 for colour, 1 for grey.")


def load(
    directory: str | Path | None,
    given: Mapping[str, object],
    progress: ReadingProgress,
    use: Use,
) -> Dataset:
    options = checked(ImageFolderOptions, given)
    if directory is None and options.folder == ".":
        raise ConfigError(
            "data.directory: is missing; set it to the folder that has a folder of images for "
            "each class"
        )
    if use.task.labels == "numbers":
        raise ConfigError(
            f"data.name = 'image_folder': folders are classes, and task = {use.task.name!r} learns "
            "numbers; load the images and their numbers in a function of your own, "
            "data.name = 'package.module:function'"
        )
    root = located("folder", options.folder, directory)
    whole = root / "train" if (root / "train").is_dir() else root
    apart = next((root / name for name in _TEST_FOLDERS if (root / name).is_dir()), None)
    apart = None if whole == root or use.train_only else apart
    train, test = _images(whole), [] if apart is None else _images(apart)
    names = names_of([label for _, label in (*train, *test)], options.classes)
    inputs = _decoded(train + test, options, progress)
    labels = numbered([label for _, label in train + test], names, str(root))
    both = Split(inputs, labels)
    if apart is not None:
        rows = labels.new_tensor(range(len(labels)))
        kept, held = rows[: len(train)], rows[len(train) :]
    elif use.train_only:
        kept, held = labels.new_tensor(range(len(labels))), labels[:0]
    else:
        kept, held = parted(labels, options.test_share, str(root))
    within = [str(path.parent.relative_to(whole / label)) for path, label in train]
    inside = any(folder != "." for folder in within)
    columns = Columns((FOLDER,), {FOLDER: within}).take(kept) if inside else None
    return Dataset(
        name="image_folder",
        kind="image",
        train=both.take(kept),
        test=both.take(held),
        classes=len(names),
        facts=image_facts(inputs, len(names)),
        prepare=Normalise((0.5,) * options.channels, (0.5,) * options.channels),  # -1 to 1
        columns=columns,
        class_names=names,
    ).check(train_only=use.train_only)


def _images(folder: Path) -> list[tuple[Path, str]]:
    """Each image with the name of its class, in a fixed order."""
    found: list[tuple[Path, str]] = []
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    for each in classes:
        files = sorted(path for path in each.rglob("*") if path.suffix.lower() in _SUFFIXES)
        if not files:
            raise ConfigError(
                f"{each}: holds no images ({', '.join(sorted(_SUFFIXES))}); each folder in "
                f"{folder} is a class"
            )
        found += [(path, each.name) for path in files]
    if not found:
        raise ConfigError(f"{folder}: has no folders of images; there must be one for each class")
    return found


def _decoded(
    images: Sequence[tuple[Path, str]], options: ImageFolderOptions, progress: ReadingProgress
) -> Tensor:
    paths = [path for path, _ in images]
    mode: Literal["RGB", "L"] = "RGB" if options.channels == 3 else "L"
    # "deep": what was decoded before pictures of 16 bits were read right is not used again.
    made_with = {"size": options.size or 0, "mode": mode, "deep": 1}
    inputs = cached(
        "image_folder",
        paths,
        made_with,
        lambda: {
            "inputs": decode(
                [(path, path) for path in paths],
                mode,
                progress,
                size=options.size,
                way_out=_WAY_OUT,
            )
        },
    )["inputs"]
    if inputs.shape[2] != inputs.shape[3]:
        raise ConfigError(
            f"{paths[0]}: images are {inputs.shape[3]}x{inputs.shape[2]}, not squares{_WAY_OUT}"
        )
    return inputs
