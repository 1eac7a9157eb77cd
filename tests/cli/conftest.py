"""A recipe small enough to be run many times, and a way to call the command line."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedoptima.cli.app import app

TINY = """
name = "tiny"
model.name = "vgg5"
data.name = "digits"
fleet.server.gflops = 3
training = { batch_size = 50 }
stop.epochs = 1

[[fleet.devices]]
name = "slow"
gflops = 0.1
mbps = 5

[[fleet.devices]]
name = "fast"
count = 2
gflops = 0.3
mbps = 5
"""


class Answer:
    """What a command left: its exit code, and its output with all white space as one space."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def words(self) -> str:
        return " ".join(self.out.split())

    @property
    def complaint(self) -> str:
        return " ".join(self.err.split())


Call = Callable[..., Answer]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the command line in this process, from an empty folder, 80 columns wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str | Path) -> Answer:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def hang_up() -> Iterator[None]:
    """A process that has had one SIGHUP ignores the others; the next test's hears it again."""
    yield
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start the command line as a process of its own, in the same folder."""

    def begin(*arguments: str | Path) -> subprocess.Popen[str]:
        # -P: the current folder is not on the path by itself, as for an installed script.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "fedoptima", *map(str, arguments)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin
