"""Damaged checkpoints and files of a run: found, said, and replaced by what is whole."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from fedoptima.core.errors import ConfigError
from fedoptima.experiments.simulated_run import Interrupted
from tests.sim.test_checkpoint import (
    After,
    end,
    go_on,
    stopped,
    stopped_four_times,
    unbroken_end,
)


@pytest.mark.parametrize("file", ["state.json", "tensors.safetensors"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = stopped_four_times(tmp_path / "run")
    (newer / file).write_text("")
    with pytest.raises(Interrupted):
        go_on(tmp_path / "run", interrupted=After(5))
    assert f"{newer}: not a complete checkpoint" in caplog.text
    # The one saved now is older than the damaged one, and the newest all the same.
    kept = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert kept[0] == older
    assert older.name < kept[1].name < newer.name
    assert end(go_on(tmp_path / "run")) == unbroken_end()


def zero_half(tensors: Path) -> None:
    content = load_file(tensors)
    for name in sorted(content)[::2]:
        content[name].zero_()
    save_file(content, tensors)


@pytest.mark.parametrize("damage", ["zeroed tensors", "a flipped bit", "another model's tensors"])
def test_damage_that_leaves_a_readable_file_is_found_by_its_checksum(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, a run went on with half of its weights zero, and ended well by its exit code."""
    older, newer = stopped_four_times(tmp_path / "run")
    tensors = newer / "tensors.safetensors"
    match damage:
        case "zeroed tensors":
            zero_half(tensors)
        case "a flipped bit":
            content = bytearray(tensors.read_bytes())
            content[-1] ^= 1
            tensors.write_bytes(content)
        case _:
            tensors.write_bytes((older / "tensors.safetensors").read_bytes())
    assert end(go_on(tmp_path / "run")) == unbroken_end()
    assert f"{newer}: not a complete checkpoint (its checksums do not fit)" in caplog.text


def test_the_checksums_can_be_checked_without_fedoptima(tmp_path: Path) -> None:
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=stopped(tmp_path / "run"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count("OK") == 3


@pytest.mark.parametrize("file", ["state.json", "tensors.safetensors", "SHA256SUMS"])
@pytest.mark.parametrize("damage", ["cut", "gone", "noise"])
def test_a_damaged_checkpoint_is_refused_with_a_way_out(
    file: str, damage: str, tmp_path: Path
) -> None:
    damaged = stopped(tmp_path / "run") / file
    content = damaged.read_bytes()
    match damage:
        case "cut":
            damaged.write_bytes(content[: len(content) // 2])
        case "gone":
            damaged.unlink()
        case "noise":
            damaged.write_bytes(b"\xff" * 100)
    with pytest.raises(
        ConfigError, match=r"not a complete checkpoint.*no older one.*restart the run"
    ):
        go_on(tmp_path / "run")


def with_new_sums(checkpoint: Path) -> None:
    names = ("config.json", "state.json", "tensors.safetensors")
    sums = (hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() for name in names)
    lines = (f"{found}  {name}\n" for found, name in zip(sums, names, strict=True))
    (checkpoint / "SHA256SUMS").write_text("".join(lines))


def without_half_of_its_tensors(checkpoint: Path) -> None:
    content = load_file(checkpoint / "tensors.safetensors")
    save_file(
        {name: content[name] for name in sorted(content)[::2]}, checkpoint / "tensors.safetensors"
    )


def changed_state(checkpoint: Path, **parts: object) -> None:
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").write_text(json.dumps({**state, **parts}))


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def in_place_of(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.write_text("a file")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "zeroed tensors": lambda path: zero_half(path / "tensors.safetensors"),
    "truncated tensors": lambda path: cut_in_half(path / "tensors.safetensors"),
    "no tensors": lambda path: (path / "tensors.safetensors").unlink(),
    "tensors that are none": lambda path: (path / "tensors.safetensors").write_text("{}"),
    "fewer tensors": without_half_of_its_tensors,
    "truncated state": lambda path: cut_in_half(path / "state.json"),
    "no state": lambda path: (path / "state.json").unlink(),
    "garbage for a state": lambda path: (path / "state.json").write_bytes(b"\xff{[" * 99),
    "a state that is a list": lambda path: (path / "state.json").write_text("[]"),
    "a state with other figures": lambda path: changed_state(path, now=1.0),
    "truncated config": lambda path: cut_in_half(path / "config.json"),
    "no config": lambda path: (path / "config.json").unlink(),
    "another config": lambda path: (path / "config.json").write_text("{}"),
    "truncated sums": lambda path: cut_in_half(path / "SHA256SUMS"),
    "no sums": lambda path: (path / "SHA256SUMS").unlink(),
    "empty sums": lambda path: (path / "SHA256SUMS").write_text(""),
    "sums of something else": lambda path: (path / "SHA256SUMS").write_text(f"{'0' * 64}  a\n"),
    "not even a folder": in_place_of,
    "an empty folder": lambda path: [file.unlink() for file in path.iterdir()],
    # As they were written, by their checksums; what they say makes no sense.
    "a core of nonsense": lambda path: (changed_state(path, simulation=["?"]), with_new_sums(path)),
    "engines of nonsense": lambda path: (changed_state(path, engines={}), with_new_sums(path)),
    "another schema": lambda path: (changed_state(path, schema=99), with_new_sums(path)),
    "a place that the trace never reached": lambda path: (
        changed_state(path, trace=[10**9, 5, "00"]),
        with_new_sums(path),
    ),
    "fewer tensors than it says": lambda path: (
        without_half_of_its_tensors(path),
        with_new_sums(path),
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_whatever_is_damaged_the_one_before_is_used_and_a_line_says_which_and_why(
    damage: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, newer = stopped_four_times(tmp_path / "run")
    DAMAGE[damage](newer)
    with pytest.raises(Interrupted):
        go_on(tmp_path / "run", interrupted=After(1))
    (said,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert said.startswith(f"{newer}: ")
    assert said.endswith("; trying the one before it")


CONFIG_DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": cut_in_half,
    "gone": Path.unlink,
    "garbage": lambda file: file.write_bytes(b"\xff" * 99),
    "another figure": lambda file: file.write_text(
        file.read_text().replace('"learning_rate": 0', '"learning_rate": 9', 1)
    ),
}


@pytest.mark.parametrize("damage", CONFIG_DAMAGE)
def test_config_json_is_damaged(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It gives way to the copy in the newest checkpoint."""
    _, newest = stopped_four_times(tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    whole = config.read_text()
    CONFIG_DAMAGE[damage](config)
    assert not config.exists() or config.read_bytes() != whole.encode()
    with pytest.raises(Interrupted):
        go_on(tmp_path / "run", interrupted=After(1))
    (said,) = {r.getMessage() for r in caplog.records if r.levelname == "WARNING"}
    assert said.startswith(f"{config}: damaged")
    assert said.endswith(f"{newest.name}/config.json says is used")
    assert config.read_text() == whole, "it is put right"


def test_a_config_without_a_good_copy_in_a_checkpoint_is_taken_from_the_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped_four_times(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(Interrupted):
        go_on(tmp_path / "run", interrupted=After(1))
    assert "trace.jsonl.gz says is used" in caplog.text
