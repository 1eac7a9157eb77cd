"""The only list of data sets: their names, where they come from, how they are read."""

from __future__ import annotations

import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from torch import Tensor

from fedoptima.core.errors import ConfigError, FedOptimaError, describe
from fedoptima.data import augment, image_folder, table
from fedoptima.data.cifar import CIFAR_10_BATCHES_PY
from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset, Normalise
from fedoptima.data.digits import DIGITS_CSV, Digits
from fedoptima.data.image_folder import ImageFolderOptions
from fedoptima.data.images import TINY_IMAGENET_200, ImageSource, idx_images, parquet_images
from fedoptima.data.layouts import HIDDEN_WORDS, ReadingProgress, did_you_mean, quiet
from fedoptima.data.own_files import FileOptions
from fedoptima.data.rows import Choice, is_dataset_dict
from fedoptima.data.table import CsvOptions
from fedoptima.data.text import ACL_IMDB, GLUE_SST2, TextFacts, TextSource, parquet_texts
from fedoptima.data.use import ANY_USE, Use
from fedoptima.named_code import ANY_CODE, AllowedCode, Code, installed

_SOURCES: tuple[ImageSource | TextSource, ...] = (
    Digits(
        name="digits",
        description="8x8 handwritten digits that come with scikit-learn; works offline",
        train=1_442,
        test=355,
        home="scikit-learn (pip install 'fedoptima[data]')",
        comes_with="scikit-learn",
        layouts=(DIGITS_CSV,),
        classes=10,
        shape=(1, 8, 8),
        per_class=(143, 146, 142, 147, 145, 146, 145, 144, 140, 144),
        normalise=Normalise((0.3053,), (0.3760,), full_scale=16),
    ),
    ImageSource(
        name="cifar10",
        description="32x32 colour photographs in 10 classes",
        train=50_000,
        test=10_000,
        home="the CIFAR-10 page (python version), https://www.cs.toronto.edu/~kriz/cifar.html",
        layouts=(parquet_images("RGB", "cifar10", "cifar-10", "cifar_10"), CIFAR_10_BATCHES_PY),
        classes=10,
        shape=(3, 32, 32),
        per_class=(5_000,) * 10,
        normalise=Normalise((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        augment=augment.CIFAR10,
    ),
    ImageSource(
        name="tiny_imagenet",
        description="64x64 colour photographs in 200 classes (a subset works too)",
        train=100_000,
        test=10_000,
        home="Stanford's CS231n course, http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        layouts=(parquet_images("RGB", "tiny-imagenet", "tiny_imagenet"), TINY_IMAGENET_200),
        shape=(3, 64, 64),
        per_class=(500,) * 200,
        normalise=Normalise((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
        augment=augment.TINY_IMAGENET,
    ),
    TextSource(
        name="sst2",
        description="sentences and phrases of film reviews, positive or negative",
        train=48_000,
        test=19_349,
        home="the GLUE benchmark (SST-2), https://gluebenchmark.com/tasks",
        layouts=(parquet_texts("sentence", "sst2", "sst-2", "sst_2"), GLUE_SST2),
        defaults={"vocabulary": 16_000, "length": 48, HIDDEN_WORDS: 0.0, "division": "paper"},
        facts={
            "paper": TextFacts((21_214, 26_786), 19_349, 13_580),
            "glue": TextFacts((29_780, 37_569), 872, 13_830),
        },
    ),
    TextSource(
        name="imdb",
        description="whole film reviews, positive or negative",
        train=25_000,
        test=25_000,
        home="the Large Movie Review Dataset, https://ai.stanford.edu/~amaas/data/sentiment/",
        layouts=(parquet_texts("text", "imdb"), ACL_IMDB),
        defaults={"vocabulary": 16_000, "length": 256, HIDDEN_WORDS: 0.0},
        facts={"": TextFacts((12_500, 12_500), 25_000, 81_587)},
    ),
    ImageSource(
        name="mnist",
        description="28x28 handwritten digits",
        train=60_000,
        test=10_000,
        home="the MNIST page, http://yann.lecun.com/exdb/mnist/",
        layouts=(idx_images("mnist", "MNIST/raw", "MNIST"), parquet_images("L", "mnist")),
        classes=10,
        shape=(1, 28, 28),
        per_class=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        normalise=Normalise((0.1307,), (0.3081,)),
        augment=augment.MNIST,
    ),
    ImageSource(
        name="fashion_mnist",
        description="28x28 pictures of 10 kinds of clothing",
        train=60_000,
        test=10_000,
        home="Zalando Research, https://github.com/zalandoresearch/fashion-mnist",
        layouts=(
            idx_images("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", "FashionMNIST"),
            parquet_images("L", "fashion-mnist", "fashion_mnist"),
        ),
        classes=10,
        shape=(1, 28, 28),
        per_class=(6_000,) * 10,
        normalise=Normalise((0.2860,), (0.3530,)),
        augment=augment.FASHION_MNIST,
    ),
)

LOG = logging.getLogger("fedoptima.data")

DATASETS: Mapping[str, ImageSource | TextSource] = {source.name: source for source in _SOURCES}


@dataclass(frozen=True)
class OwnFiles:
    """Files of the user's, read as a data set of this name."""

    description: str
    options: type[FileOptions]
    load: Callable[[str | Path | None, Mapping[str, object], ReadingProgress, Use], Dataset]


OWN_FILES: Mapping[str, OwnFiles] = {
    "image_folder": OwnFiles(
        "your own images, in a folder for each class", ImageFolderOptions, image_folder.load
    ),
    "csv": OwnFiles("your own table, with a column for the classes", CsvOptions, table.load),
}


def load_dataset(
    name: str,
    code: AllowedCode = ANY_CODE,
    use: Use = ANY_USE,
    /,
    *,
    directory: str | Path | None = None,
    progress: ReadingProgress = quiet,
    **options: object,
) -> Dataset:
    """A data set by its name, or by "package.module:function" that returns one."""
    if ":" in name:
        return _made_by(code.load(name, "data.name"), name, options, use)
    if name in OWN_FILES:
        return OWN_FILES[name].load(directory, options, progress, use)
    check_known(name, code)
    if name.replace("-", "_") not in DATASETS:
        return _made_by(cast(Code, installed("datasets", name)), name, options, use)
    return (
        DATASETS[name.replace("-", "_")]
        .load(directory, options, progress)
        .check()
        .for_task(use.task)
    )


def check_known(name: str, code: AllowedCode = ANY_CODE) -> None:
    """Raise ConfigError unless there is such a data set, or such a function; nothing is read."""
    if ":" in name:
        code.load(name, "data.name")
        return
    ours = (*DATASETS, *OWN_FILES)
    if name in OWN_FILES or name.replace("-", "_") in DATASETS or installed("datasets", name):
        return
    raise ConfigError(
        f"data.name = {name!r}: unknown data set{did_you_mean(name, {**DATASETS, **OWN_FILES})}; "
        f"there are {', '.join(ours)}, or give 'package.module:function' for your own"
    )


def load_or_stand_in(
    name: str,
    code: AllowedCode = ANY_CODE,
    use: Use = ANY_USE,
    /,
    *,
    directory: str | Path | None = None,
    progress: ReadingProgress = quiet,
    **options: object,
) -> Dataset:
    """For dry runs, which use no samples: a set that is not on disk is described by its facts."""
    assumed = assumption(name, directory)
    if assumed is None:
        return load_dataset(name, code, use, directory=directory, progress=progress, **options)
    LOG.warning(assumed)
    return DATASETS[name.replace("-", "_")].stand_in(options).check().for_task(use.task)


def assumption(name: str, directory: str | Path | None) -> str | None:
    """What a dry run assumes about a set that is not on disk; None: nothing."""
    source = DATASETS.get(name.replace("-", "_"))
    return None if source is None else source.assumption(directory)


def _made_by(function: Code, path: str, options: Mapping[str, object], use: Use) -> Dataset:
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise ConfigError(f"data.name = {path!r}: does not take these options: {error}") from error
    try:
        result = function(**options)
    except FedOptimaError:
        raise
    except (Exception, SystemExit) as error:  # nobody else would say why the process ends
        raise ConfigError(
            f"data.name = {path!r}: failed with {describe(error)}{_line_of(error, function)}"
        ) from error
    if isinstance(result, tuple | list) and len(result) == 2 and not _is_labels(result[1]):
        train, test = result
    else:
        train, test = result, None
    choice = Choice(besides=(use.column,) if use.column is not None else ())
    if isinstance(train, Dataset) or test is not None or use.train_only or is_dataset_dict(train):
        only, task = use.train_only, use.task
        return as_dataset(train, test, name=path, choice=choice, train_only=only, task=task)
    raise ConfigError(
        f"data.name = {path!r}: returned {type(result).__name__}, without test data; return "
        "(train, test), or a Dataset (only a device may have training data alone)"
    )


def _line_of(error: BaseException, function: Code) -> str:
    """Of the user's own code: it says more than all our calls before it."""
    frames = traceback.extract_tb(error.__traceback__)
    home = getattr(sys.modules.get(function.__module__), "__file__", None)
    found = [frame for frame in frames if frame.filename == home] or frames
    return f" ({found[-1].filename}, line {found[-1].lineno}: {found[-1].line})"


def _is_labels(value: object) -> bool:
    """Of the training data alone, (inputs, labels); test data have inputs as well."""
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], int)
    return isinstance(value, Tensor | np.ndarray)
