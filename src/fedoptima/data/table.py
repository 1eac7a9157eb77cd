"""``data.name = "csv"``: a table with a header; its columns are features, the label, or neither.

Every column can divide the data among the devices, whether it is a feature or not.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.data.columns import Columns
from fedoptima.data.dataset import Dataset, Split, as_given
from fedoptima.data.finite import in_words, rows_in_words
from fedoptima.data.layouts import ReadingProgress, reading
from fedoptima.data.own_files import FileOptions, checked, located, names_of, numbered, parted
from fedoptima.data.use import Use
from fedoptima.tasks.ready import CLASSIFICATION

_FIRST = 2  # the line of the first row: the header is line 1


class CsvOptions(FileOptions):
    file: str = Field(
        description="The table, inside the data directory.", examples=["patients.csv"]
    )
    test_file: str | None = Field(
        default=None,
        description="A table with the test data; unset: a share of `file`.",
        examples=["patients_test.csv"],
    )
    label: str = Field(
        default="label",
        description='The column with the classes; with `task = "regression"`, with the numbers.',
    )
    features: tuple[str, ...] = Field(
        default=(),
        description="The input columns, all numbers; unset: all except the label and the "
        "partition's column.",
        examples=[["age", "weight"]],
    )
    standardise: bool = Field(
        default=True,
        description="Standardise each feature to mean 0 and deviation 1 over the training rows of "
        "this file.",
    )
    delimiter: str = Field(
        default=",", min_length=1, max_length=1, description="Between two columns."
    )


Table = dict[str, list[str]]


def load(
    directory: str | Path | None,
    given: Mapping[str, object],
    progress: ReadingProgress,
    use: Use,
) -> Dataset:
    options = checked(CsvOptions, given)
    path = located("file", options.file, directory)
    progress(f"reading {path.name}", 0, 1)
    table = _read(path, options.delimiter)
    features = _features(table, options, use.column, path)
    tables = [(path, table)]
    if options.test_file is not None and not use.train_only:
        apart = located("test_file", options.test_file, directory)
        tables.append((apart, other := _read(apart, options.delimiter)))
        _check_columns(other, (*features, options.label), apart)
    inputs = [_numbers(each, features, place) for place, each in tables]
    measured = use.task.labels == "numbers"
    if measured:
        names: tuple[str, ...] = ()
        labels = [_numbers(each, [options.label], place).squeeze(1) for place, each in tables]
    else:
        texts = [_labels(each, options.label, place) for place, each in tables]
        names = names_of([text for part in texts for text in part], options.classes)
        labels = [numbered(part, names, str(path)) for part in texts]
    rows, *test = map(Split, inputs, labels)
    if test or use.train_only:
        kept = torch.arange(len(rows))
        held = test[0] if test else rows.take(kept[:0])
    else:
        strata = torch.zeros(len(rows), dtype=torch.int64) if measured else rows.labels
        kept, chosen = parted(strata, options.test_share, str(path))
        held = rows.take(chosen)
    train, classes = rows.take(kept), 1 if measured else len(names)
    if options.standardise:
        train, held = _standardised(train, held)
    progress(f"reading {path.name}", 1, 1)
    return Dataset(
        name="csv",
        kind="custom",
        train=train,
        test=held,
        classes=classes,
        facts={"features": len(features), "classes": classes},
        prepare=as_given,
        columns=Columns(tuple(table), table).take(kept),
        class_names=names,
        feature_names=features,
        task=use.task if measured else CLASSIFICATION,
    ).check(train_only=use.train_only)


def _read(path: Path, delimiter: str) -> Table:
    with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(lines, [])]
            rows = [row for row in lines if row]
        except csv.Error as error:
            raise ConfigError(f"{path}: line {lines.line_num}: {error}") from error
    if header[:1] == [""] and len(header) > 1:
        raise ConfigError(
            f"{path}: the first column has no name; is it the index that pandas writes? Leave it "
            "out: to_csv(..., index=False)"
        )
    if len(set(header)) < len(header) or not all(header):
        raise ConfigError(
            f"{path}: line 1 must name each column once, and has {in_words(header) or 'nothing'}; "
            "is the header missing, or data.delimiter another?"
        )
    wrong = [line for line, row in enumerate(rows, start=_FIRST) if len(row) != len(header)]
    if wrong:
        raise ConfigError(
            f"{path}: {len(header)} columns are named, but line {wrong[0]} has "
            f"{len(rows[wrong[0] - _FIRST])}; is data.delimiter = {delimiter!r} right?"
        )
    if not rows:
        raise ConfigError(f"{path}: has no rows below its header")
    columns = zip(*rows, strict=True)
    return {name: [value.strip() for value in column] for name, column in
            zip(header, columns, strict=True)}  # fmt: skip


def _check_columns(table: Table, names: Sequence[str], path: Path) -> None:
    for name in names:
        if name not in table:
            alone = "; is data.delimiter another?" if len(table) == 1 else ""
            raise ConfigError(
                f"{path}: has no column {name!r}; it has {in_words(list(table))}{alone}"
            )


def _features(table: Table, options: CsvOptions, column: str | None, path: Path) -> tuple[str, ...]:
    _check_columns(table, (*options.features, options.label), path)
    if options.label in options.features:
        raise ConfigError(f"data.features: {options.label!r} is the label; leave it out")
    usual = tuple(name for name in table if name not in (options.label, column))
    return options.features or usual


def _numbers(table: Table, features: Sequence[str], path: Path) -> Tensor:
    columns = [_number_column(table[name], name, path) for name in features]
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))


def _number_column(values: list[str], name: str, path: Path) -> NDArray[np.float64]:
    missing = [line for line, value in enumerate(values, start=_FIRST) if not value]
    if missing:
        raise ConfigError(
            f"{path}: column {name!r} has no value in {_lines(missing)}; fill them in or leave "
            "these rows out"
        )
    try:
        numbers = np.array(values, dtype=np.float64)
    except ValueError:
        line, text = next(
            (line, value)
            for line, value in enumerate(values, start=_FIRST)
            if not _is_number(value)
        )
        raise ConfigError(
            f"{path}: column {name!r} holds {text!r} in line {line}, which is not a number; encode "
            "it as numbers, or name the columns that the model takes in data.features"
        ) from None
    bad = (np.flatnonzero(~np.isfinite(numbers)) + _FIRST).tolist()
    if bad:
        raise ConfigError(f"{path}: column {name!r} is NaN or infinite in {_lines(bad)}")
    return numbers


def _labels(table: Table, name: str, path: Path) -> list[str]:
    missing = [line for line, value in enumerate(table[name], start=_FIRST) if not value]
    if missing:
        raise ConfigError(f"{path}: no label ({name!r}) in {_lines(missing)}; leave these rows out")
    between = [value for value in table[name] if _is_number(value) and float(value) % 1]
    if between:
        raise ConfigError(
            f"{path}: column {name!r} holds {between[0]}, which is not a class; name a column of "
            "classes with data.label, or set task = 'regression' to learn the numbers"
        )
    return table[name]


def _lines(lines: Sequence[int]) -> str:
    return rows_in_words(lines).replace("row", "line")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _standardised(train: Split, test: Split) -> tuple[Split, Split]:
    """By the figures of the training rows alone."""
    mean = train.tensor.double().mean(0)
    deviation = train.tensor.double().std(0, correction=0)
    deviation = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    first, second = (
        Split(((part.tensor - mean) / deviation).float(), part.labels) for part in (train, test)
    )
    return first, second
