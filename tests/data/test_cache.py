from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fedoptima.data.cache import Tensors, cached


class Builder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Tensors:
        self.calls += 1
        return {"x": torch.arange(6).view(2, 3), "y": torch.tensor([self.calls])}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(b"12345")
    os.utime(path, ns=(10**18, 10**18))
    return path


def test_the_same_files_are_built_once(source: Path, cache: Path):
    build = Builder()
    first, second = (cached("set", [source], {"n": 1}, build) for _ in range(2))
    assert build.calls == 1
    assert torch.equal(first["x"], second["x"])
    assert [path.suffix for path in (cache / "decoded").iterdir()] == [".safetensors"]


@pytest.mark.parametrize("change", ["content", "time", "name", "option"])
def test_other_files_or_options_are_built_anew(source: Path, change: str):
    build = Builder()
    cached("set", [source], {"n": 1}, build)
    options = {"n": 1}
    if change == "content":
        source.write_bytes(b"123456")
        os.utime(source, ns=(10**18, 10**18))
    elif change == "time":
        os.utime(source, ns=(10**18, 10**18 + 1))
    elif change == "name":
        source = source.rename(source.with_name("other.bin"))
    else:
        options = {"n": 2}
    assert cached("set", [source], options, build)["y"].item() == 2


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_entry_is_built_again(source: Path, cache: Path, damage: bytes | None):
    build = Builder()
    cached("set", [source], {}, build)
    [entry] = (cache / "decoded").iterdir()
    entry.write_bytes(entry.read_bytes()[:-8] if damage is None else damage)
    assert cached("set", [source], {}, build)["y"].item() == 2
    assert cached("set", [source], {}, build)["y"].item() == 2  # and is whole again


def test_a_cache_that_cannot_be_written_is_not_an_error(source: Path, cache: Path):
    cache.write_text("a file where the folder should be")
    build = Builder()
    for call in (1, 2):
        assert cached("set", [source], {}, build)["y"].item() == call
