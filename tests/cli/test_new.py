"""`fedoptima new` writes a project whose test, simulation and run work as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.documents.commands import mistakes_in

QUICK = ("--set", "stop.epochs=1", "-q")


@pytest.fixture
def project(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    answer = call("new", "sensors")
    assert answer.code == 0
    assert "fedoptima simulate recipe.toml\n" in answer.out
    monkeypatch.chdir(tmp_path / "sensors")
    monkeypatch.syspath_prepend(tmp_path / "sensors")
    return tmp_path / "sensors"


def test_its_test_its_simulation_and_its_run_work(call: Call, project: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {key: value for key, value in os.environ.items() if "COV" not in key}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    os.chdir(project)  # the fixture of calls begins in another folder
    allowed = ("--allow-module", "sensors")
    assert call("simulate", "recipe.toml", *QUICK, "--out", "runs/first").code == 0
    assert call("replay", "runs/first", "--weights", *allowed, "-q").code == 0
    answer = call("run", "recipe.toml", *allowed, *QUICK, "--devices", "2", "--out", "runs/here")
    assert answer.code == 0, answer.err
    assert (project / "runs/here/model.safetensors").is_file()


def test_nothing_of_the_template_is_left_and_every_command_exists(
    call: Call, tmp_path: Path
) -> None:
    assert call("new", "meters", "--out", "here").code == 0
    project = tmp_path / "here"
    files = {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}
    assert files == {
        *(".gitignore", "README.md", "recipe.toml", "pyproject.toml"),
        *("meters/__init__.py", "meters/model.py", "meters/data.py", "tests/test_meters.py"),
    }
    for file in files:
        assert "myapp" not in (project / file).read_text()
    blocks = re.findall(r"```sh\n(.+?)```", (project / "README.md").read_text(), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    commands = [line for line in lines if line.startswith("fedoptima ")]
    assert len(commands) > 10
    for command in commands:
        assert not list(mistakes_in(command)), command
        words = shlex.split(command)
        if words[1:3] == ["simulate", "recipe.toml"]:  # one's own file
            assert "--allow-module" not in words
        elif words[1] in ("simulate", "run", "server", "device", "report", "replay"):
            assert words[words.index("--allow-module") + 1] == "meters", command


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-app", "letters, digits and _"),
        ("class", "letters, digits and _"),
        ("json", "there is a Python package of this name already"),
        ("numpy", "there is a Python package of this name already"),
        ("taken", "taken: exists already; choose another folder (--out)"),
    ],
)
def test_a_name_that_cannot_be_used(call: Call, tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").touch()
    answer = call("new", name)
    assert answer.code == 2
    assert message in answer.complaint
