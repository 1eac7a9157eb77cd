"""Text data sets: sentences and labels to padded token ids, with a vocabulary of the training part.

The cache holds the encoded text together with its words, so a cached data set still has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fedoptima.core.errors import ConfigError
from fedoptima.core.seeding import derive
from fedoptima.data.augment import HideWords
from fedoptima.data.cache import Tensors, cached
from fedoptima.data.dataset import Dataset, Kind, Split, stand_in, text_facts, token_ids
from fedoptima.data.layouts import (
    HIDDEN_WORDS,
    Found,
    Layout,
    Options,
    Part,
    ReadingProgress,
    Source,
    of_the_files,
    reading,
)
from fedoptima.data.parquet import columns
from fedoptima.data.vocabulary import RESERVED, Vocabulary

CLASSES = 2  # both sets are sentiment: 0 negative, 1 positive

# Section 5.2: 48,000 of the 67,349 labelled rows of SST-2 for training, the rest for testing.
PAPER_TRAIN, PAPER_ROWS = 48_000, 67_349

# What the options of these sets mean (docs/recipe.md).
OPTIONS: Mapping[str, str] = {
    "vocabulary": "Size of the vocabulary: the most frequent words.",
    "length": "Words of a text that are kept.",
    HIDDEN_WORDS: "Share of the words that are randomly replaced by the unknown word in training.",
    "division": "Which rows are for training and which for the test: paper, or glue as published.",
}


@dataclass(frozen=True)
class Texts:
    texts: list[str]
    labels: list[int]

    def take(self, rows: list[int]) -> Texts:
        return Texts([self.texts[row] for row in rows], [self.labels[row] for row in rows])


@dataclass(frozen=True)
class TextFacts:
    """The complete set, as one of its divisions has it."""

    per_class: tuple[int, ...]  # training samples of each class
    test: int
    vocabulary: int  # ids for all words of the training part


@dataclass(frozen=True, kw_only=True)
class TextSource(Source[Texts]):
    kind: ClassVar[Kind] = "text"
    facts: Mapping[str, TextFacts]  # by division; "" where there is only one

    def resolve(self, options: Mapping[str, object]) -> dict[str, int | float | str]:
        chosen = super().resolve(options)
        for key, least in (("vocabulary", RESERVED + 1), ("length", 1)):
            if int(chosen[key]) < least:
                raise ConfigError(
                    f"data set {self.name!r}: option {key!r} = {chosen[key]}: must be at least "
                    f"{least} (usual: {self.defaults[key]})"
                )
        if not 0.0 <= float(hidden := chosen[HIDDEN_WORDS]) < 1.0:
            raise ConfigError(
                f"data set {self.name!r}: option {HIDDEN_WORDS!r} = {hidden}: must be at least 0 "
                "and below 1"
            )
        if chosen.get("division", "paper") not in ("paper", "glue"):
            raise ConfigError(
                f"data set {self.name!r}: option 'division' = {chosen['division']!r}: must be "
                "'paper' (48,000 / 19,349 rows of the training file) or 'glue' (train / validation)"
            )
        return chosen

    def load(
        self, directory: str | Path | None, options: Mapping[str, object], progress: ReadingProgress
    ) -> Dataset:
        chosen = self.resolve(options)
        found = self.locate(directory)
        build = partial(_encode, found, chosen, progress)
        tensors = cached(self.name, found.files(), of_the_files(chosen), build)
        words = bytes(tensors["words"].numpy()).decode().split("\n")
        vocabulary = Vocabulary(tuple(words))
        return self._assemble(
            Split(tensors["train_inputs"], tensors["train_labels"]),
            Split(tensors["test_inputs"], tensors["test_labels"]),
            len(vocabulary),
            float(chosen[HIDDEN_WORDS]),
            vocabulary,
        )

    def stand_in(self, options: Mapping[str, object]) -> Dataset:
        """The complete set by its facts alone, without its files."""
        chosen = self.resolve(options)
        facts, shape = self.facts[str(chosen.get("division", ""))], (int(chosen["length"]),)
        train = stand_in(shape, torch.int32, facts.per_class)
        test = stand_in(shape, torch.int32, (facts.test - facts.test // 2, facts.test // 2))
        ids = min(int(chosen["vocabulary"]), facts.vocabulary)
        return self._assemble(train, test, ids, float(chosen[HIDDEN_WORDS]))

    def _assemble(
        self,
        train: Split,
        test: Split,
        ids: int,
        hidden: float,
        vocabulary: Vocabulary | None = None,
    ) -> Dataset:
        return Dataset(
            name=self.name,
            kind=self.kind,
            train=train,
            test=test,
            classes=CLASSES,
            facts=text_facts(train.tensor, ids, CLASSES),
            prepare=token_ids,
            augment=HideWords(hidden, train.tensor.shape[1]) if hidden else None,
            vocabulary=vocabulary,
        )


def _encode(found: Found[Texts], options: Options, progress: ReadingProgress) -> Tensors:
    progress(f"reading {found.folder.name}", 0, 3)
    train = found.read("train", progress)
    if options.get("division") == "paper":
        train, test = paper_division(train)
    else:
        test = found.read("test", progress)
    progress("counting words", 1, 3)
    vocabulary = Vocabulary.from_texts(train.texts, int(options["vocabulary"]))
    if not vocabulary.words:
        raise ConfigError(f"{found.folder}: the training text has no words; get the data set again")
    progress("encoding text", 2, 3)
    length = int(options["length"])
    tensors = {
        "train_inputs": vocabulary.encode(train.texts, length),
        "train_labels": torch.tensor(train.labels, dtype=torch.int64),
        "test_inputs": vocabulary.encode(test.texts, length),
        "test_labels": torch.tensor(test.labels, dtype=torch.int64),
        "words": torch.frombuffer(
            bytearray("\n".join(vocabulary.words).encode()), dtype=torch.uint8
        ),
    }
    progress("encoding text", 3, 3)
    return tensors


def paper_division(rows: Texts) -> tuple[Texts, Texts]:
    """The paper's 48,000 / 19,349, by a fixed shuffle; in proportion where the file has other rows.

    The training file holds phrases of the same sentences, and a shuffle spreads them over both
    parts: accuracies are higher than on GLUE's own validation set.
    """
    random = np.random.default_rng(derive(0, "sst2", "paper division"))
    order: list[int] = random.permutation(len(rows.texts)).tolist()
    cut = len(order) * PAPER_TRAIN // PAPER_ROWS
    return rows.take(order[:cut]), rows.take(order[cut:])


def parquet_texts(column: str, *folders: str) -> Layout[Texts]:
    return Layout(folders, ("train-*.parquet", "*.parquet"), partial(_read_parquet, column))


def _read_parquet(column: str, folder: Path, part: Part, progress: ReadingProgress) -> Texts:
    rows = Texts([], [])
    for path, (texts, labels) in columns(folder, part, [(column,), ("label",)]):
        with reading(path):
            for text, label in zip(texts, labels, strict=True):
                if not isinstance(text, str) or not isinstance(label, int):
                    raise ValueError(f"row {len(rows.texts)} has no text or no label")
                rows.texts.append(text)
                rows.labels.append(label)
    return rows


def _read_glue(folder: Path, part: Part, progress: ReadingProgress) -> Texts:
    """Tab-separated without quoting: quotation marks are part of the text."""
    path = folder / ("train.tsv" if part == "train" else "dev.tsv")
    rows = Texts([], [])
    with reading(path), path.open(encoding="utf-8", newline="\n") as lines:
        if next(lines, "").rstrip("\r\n").split("\t") != ["sentence", "label"]:
            raise ValueError("line 1 is not 'sentence<tab>label'")
        # Lines end at "\n" only (str.splitlines would also cut at other marks inside a text).
        for number, line in enumerate(lines, start=2):
            text, tab, label = line.rstrip("\r\n").rpartition("\t")
            if not tab or label not in ("0", "1"):
                raise ValueError(f"line {number} is not 'sentence<tab>0 or 1'")
            rows.texts.append(text)
            rows.labels.append(int(label))
    return rows


def _read_acl_imdb(folder: Path, part: Part, progress: ReadingProgress) -> Texts:
    rows = Texts([], [])
    for label, name in enumerate(("neg", "pos")):
        reviews = sorted((folder / part / name).glob("*.txt"), key=_review_number)
        if not reviews:
            raise ConfigError(f"{folder / part / name}: holds no reviews; unpack aclImdb again")
        for path in reviews:
            with reading(path):
                rows.texts.append(path.read_text(encoding="utf-8"))
            rows.labels.append(label)
    return rows


def _review_number(path: Path) -> tuple[int, str]:
    """Files are called number_stars.txt; 10_3.txt comes after 9_2.txt."""
    number = path.stem.partition("_")[0]
    return (int(number) if number.isdecimal() else -1, path.name)


GLUE_SST2: Layout[Texts] = Layout(
    ("SST-2", "sst2", "sst2/SST-2", "glue/SST-2"), ("train.tsv", "dev.tsv"), _read_glue
)
ACL_IMDB: Layout[Texts] = Layout(
    ("aclImdb", "imdb/aclImdb"), ("train/pos/*.txt", "*/neg/*.txt", "*/pos/*.txt"), _read_acl_imdb
)
