from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.trace.description import Mode, RunDescription, read_config
from tests.support.descriptions import described

NOW = described("fedbuff", network=True, devices=5, options={"buffer": 5, "staleness": "hinge"})


def written(folder: Path, plain: object) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(plain))
    return path


@pytest.mark.parametrize("run", [NOW, described(cap=9, dry=True), described("a_method_of_others")])
def test_a_description_comes_back_from_its_file(tmp_path: Path, run: RunDescription) -> None:
    assert read_config(written(tmp_path, run.to_plain())) == run


@pytest.mark.parametrize("plain", [[], 3, {}, {**NOW.to_plain(), "mode": "dream"}, {"mode": "x"}])
def test_a_damaged_description_is_refused(tmp_path: Path, plain: object) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: damaged"):
        read_config(written(tmp_path, plain))


def test_what_a_later_version_wrote_is_refused_with_its_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"of schema 4, and this fedoptima \(.*\) reads 1 to 3"):
        read_config(written(tmp_path, {**NOW.to_plain(), "schema": 4}))


# ---- of fedoptima 0.1.0 --------------------------------------------------------------------------


def old(folder: Path, *, network: bool = False, **recipe: Any) -> RunDescription:
    path = written(folder, {"recipe": {"name": "old", **recipe}, "dry": False})
    if network:
        (folder / "devices").mkdir()
    return read_config(path)


GROUPS = [{"name": "a", "count": 20}, {"name": "b"}, {"name": "late", "joins_at": 3.0}]


def test_an_old_simulations_devices_are_those_of_its_fleet(tmp_path: Path) -> None:
    run = old(tmp_path, fleet={"preset": None, "devices": GROUPS}, deploy={"devices": 100})
    assert (run.mode, run.devices, run.starts_with) == (Mode.SIMULATED, 22, 21)
    assert (run.method, run.activation_cap) == ("fedoptima", 44)


def test_an_old_network_run_has_a_folder_of_its_devices(tmp_path: Path) -> None:
    run = old(tmp_path, network=True, fleet=None, deploy={"devices": 100})
    assert (run.mode, run.devices, run.starts_with) == (Mode.NETWORK, 100, 100)
    assert run.activation_cap == 200


@pytest.mark.parametrize(
    ("method", "cap"),
    [
        ({"name": "fl"}, None),
        ({"name": "fedoptima"}, 32),
        ({"name": "fedoptima", "activation_cap": 4}, 4),
        ({"name": "fedoptima", "auxiliary": "none"}, None),
    ],
)
def test_an_old_runs_cap_is_that_of_its_method(
    tmp_path: Path, method: dict[str, object], cap: int | None
) -> None:
    run = old(tmp_path, fleet={"preset": "testbed_b", "devices": []}, method=method)
    assert (run.devices, run.activation_cap) == (16, cap)


def test_an_old_fleet_that_is_a_file_is_read_or_missed(tmp_path: Path) -> None:
    fleet = tmp_path / "mine.toml"
    fleet.write_text('[[devices]]\nname = "a"\ncount = 3\n')
    assert old(tmp_path / "run", fleet={"preset": str(fleet), "devices": []}).devices == 3
    fleet.unlink()
    with pytest.raises(ConfigError, match=r"a run of fedoptima 0\.1\.0"):
        read_config(tmp_path / "run" / "config.json")


def test_the_clock_follows_from_the_mode() -> None:
    assert NOW.mode.clock == "real"
    assert replace(NOW, mode=Mode.SIMULATED).mode.clock == "virtual"
