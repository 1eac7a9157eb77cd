"""A checkpoint's folder: which are kept, what is read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.core.types import PayloadId
from fedoptima.engine.checkpoint import newest_checkpoints, payload_tensors, write_checkpoint
from tests.engine.bench import read_checkpoint, same


def tensors(value: float) -> dict[str, Tensor]:
    shared = torch.full((4,), value)
    return {"a": shared, "b": shared, "c": shared[1:], "d": shared.view(2, 2).t()}


def test_tensors_that_share_memory_come_back_apart(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 1, {"x": [1, None]}, tensors(2.5))
    saved = read_checkpoint(path)
    assert same(saved.tensors, tensors(2.5))
    assert len({t.data_ptr() for t in saved.tensors.values()}) == 4
    assert saved.state == {"x": [1, None]}


def test_only_the_last_few_are_kept_and_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / ".000000000009.tmp").mkdir()
    for number in range(1, 6):
        write_checkpoint(tmp_path, number, {"number": number}, tensors(number), keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n:012d}" for n in (3, 4, 5)]
    # After going back to 3, what was made of it is the newest, and 4 and 5 are no more.
    write_checkpoint(tmp_path, 4, {"number": -4}, tensors(4), keep=3)
    newest, *older = newest_checkpoints(tmp_path)
    assert json.loads((newest / "state.json").read_text())["number"] == -4
    assert [path.name for path in older] == [f"{3:012d}"]


def test_a_checkpoint_is_read_or_an_older_one_but_never_a_newer_one(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write_checkpoint(tmp_path, number, {"number": number}, tensors(number), keep=3)
    _, second, first = newest_checkpoints(tmp_path)
    assert read_checkpoint(second).number == 2
    (first / "state.json").unlink()
    with pytest.raises(ConfigError, match="not a complete"):
        read_checkpoint(first)


@pytest.mark.parametrize("name", ["evil|x", "engine|x|", "100%", "Gerät/0/1", "a~2"])
def test_a_payload_keeps_its_tensors_whatever_its_name(name: str, tmp_path: Path) -> None:
    payloads = {PayloadId(name): {"a|b": torch.ones(2)}, PayloadId("evil"): {"x": torch.zeros(1)}}
    write_checkpoint(tmp_path, 1, {}, payload_tensors(payloads))
    found = read_checkpoint(tmp_path / f"{1:012d}").payloads()
    assert found.keys() == payloads.keys()
    assert torch.equal(found[PayloadId(name)]["a|b"], torch.ones(2))  # type: ignore[index]
