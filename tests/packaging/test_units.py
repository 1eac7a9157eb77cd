"""The units of systemd: systemd understands them, and the commands in them exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.documents.blocks import ROOT
from tests.documents.commands import mistakes_in

UNITS = sorted((ROOT / "deploy").glob("*.service"))
PROGRAM = "/opt/fedoptima/bin/fedoptima"


def command_of(unit: Path) -> str:
    text = re.sub(r"\\\n\s*", "", unit.read_text(encoding="utf-8"))
    (command,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
    return str(command)


def test_there_is_one_for_the_server_and_one_for_a_device() -> None:
    assert [unit.stem for unit in UNITS] == ["fedoptima-device", "fedoptima-server"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_its_command_and_options_exist(unit: Path) -> None:
    command = command_of(unit)
    assert command.startswith(f"{PROGRAM} {unit.stem.removeprefix('fedoptima-')} ")
    assert list(mistakes_in(command)) == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_no_fault_in_it(unit: Path, tmp_path: Path) -> None:
    here = tmp_path / unit.name  # with a program that is installed on this machine
    here.write_text(unit.read_text(encoding="utf-8").replace(PROGRAM, "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(here)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
