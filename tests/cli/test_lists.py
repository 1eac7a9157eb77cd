from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fedoptima
from fedoptima.data.registry import DATASETS
from fedoptima.methods.registry import METHODS, method_options
from fedoptima.sim.fleet import about, presets
from tests.cli.conftest import Call


def test_version(call: Call) -> None:
    assert call("--version").out == f"fedoptima {fedoptima.__version__}\n"


def test_without_a_command_there_is_help_with_an_example(call: Call) -> None:
    answer = call()
    text = answer.out + answer.err
    assert "fedoptima simulate recipes/demo_digits.toml" in text
    for command in ("simulate", "plan", "methods", "datasets", "fleets"):
        assert command in text


def test_no_line_in_the_list_of_commands_is_cut_off(call: Call) -> None:
    for group in ((), ("certs",)):
        assert "..." not in call(*group, "--help").out.partition("Commands:")[2]


def test_help_comes_without_loading_torch() -> None:
    code = "import sys; import fedoptima.cli.app; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_method_shows_its_five_policies_and_its_options(call: Call) -> None:
    answer = call("methods")
    assert answer.code == 0
    for name in METHODS:
        assert name in answer.words
        for option in method_options(name):
            assert option in answer.words
    assert "program auxiliary server training shared aggregation AsyncStaleness" in answer.words
    assert "scheduler CounterScheduler flow CappedFlow" in answer.words
    assert "program full server training none aggregation Barrier" in answer.words
    assert "on_leave = 'keep', barrier_timeout = (unset)" in answer.words


def test_a_method_is_shown_alone(call: Call) -> None:
    answer = call("methods", "fl")
    assert answer.code == 0
    assert "participation" in answer.words
    assert "fedoptima" not in answer.words
    wrong = call("methods", "fedbuf")
    assert wrong.code == 2
    assert "fedbuff" in wrong.complaint


def test_every_data_set_says_where_it_is_or_how_to_get_it(call: Call, tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "train-0.parquet").touch()
    answer = call("datasets", "--data", tmp_path)
    assert answer.code == 0
    together = answer.out.replace("\n", "").replace(" ", "")
    assert f"found in {tmp_path}/cifar10".replace(" ", "") in together
    for name, source in DATASETS.items():
        assert name in answer.words
        assert source.description in answer.words
    assert "not found; get it from the GLUE benchmark" in answer.words


def test_every_fleet_shows_its_devices(call: Call) -> None:
    answer = call("fleets")
    assert answer.code == 0
    for name, path in presets().items():
        assert name in answer.words
        assert about(path) in answer.words
    assert "testbed_a 8 devices, server 150 GFLOP/s Testbed A of the paper" in answer.words
    assert "pi4b-1800MHz 2 9 50 50" in answer.words


@pytest.mark.parametrize("command", ["methods", "datasets", "fleets"])
def test_lists_fit_in_80_columns(call: Call, command: str) -> None:
    assert max(map(len, call(command).out.splitlines())) <= 80
