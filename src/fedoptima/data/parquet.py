"""Rows of parquet files named ``train-*.parquet`` and ``test-*.parquet``, shard after shard."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedoptima.core.errors import ConfigError
from fedoptima.data.layouts import Part, extra, reading

# Held-out parts have various names; the first that exists is used.
_NAMES: dict[Part, tuple[str, ...]] = {
    "train": ("train",),
    "test": ("test", "validation", "valid", "val"),
}
_SHARD_COUNT = re.compile(r"-of-(\d+)$")


def columns(
    folder: Path, part: Part, wanted: Sequence[tuple[str, ...]]
) -> Iterator[tuple[Path, list[list[object]]]]:
    """For every shard its path and the wanted columns; a column may have one of several names."""
    with extra("pyarrow"):
        import pyarrow.parquet

    for path in _shards(folder, part):
        with reading(path):
            names = pyarrow.parquet.read_schema(path).names
        chosen = [next((name for name in choice if name in names), None) for choice in wanted]
        present = [name for name in chosen if name is not None]
        if len(present) < len(wanted):
            expected = ", ".join(" or ".join(choice) for choice in wanted)
            raise ConfigError(f"{path}: has columns {', '.join(names)}; expected {expected}")
        with reading(path):
            table = pyarrow.parquet.read_table(path, columns=present)
            values = [table.column(name).to_pylist() for name in present]
        yield path, values


def _shards(folder: Path, part: Part) -> list[Path]:
    for name in _NAMES[part]:
        shards = sorted(folder.glob(f"{name}-*.parquet"))
        if not shards:
            continue
        # A missing shard would otherwise pass as a smaller data set.
        count = _SHARD_COUNT.search(shards[0].stem)
        if count and int(count[1]) != len(shards):
            raise ConfigError(
                f"{folder}: {len(shards)} of the {int(count[1])} files {name}-*.parquet are there; "
                "copy the missing ones"
            )
        return shards
    patterns = " or ".join(f"{name}-*.parquet" for name in _NAMES[part])
    raise ConfigError(f"{folder}: has no {patterns}, the {part} part of the data set")
