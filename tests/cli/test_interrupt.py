"""A run that is stopped or killed is gone on with, and ends as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedoptima.cli.app import app
from fedoptima.display.interrupt import Interrupt
from tests.cli.conftest import TINY, Call

EPOCHS = ("--set", "stop.epochs=6")
PATIENCE = 180.0  # seconds; a process that has not come so far by then never will


def digests(text: str) -> tuple[str, str]:
    result = json.loads(text)
    return result["trace_digest"], result["weights_digest"]


def wait_for_checkpoint(run: Path, process: subprocess.Popen[str]) -> None:
    """Return while the process is in the middle of its training."""
    deadline = time.monotonic() + PATIENCE
    while not any((run / "checkpoints").glob("[0-9]*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("unbroken")
    (folder / "tiny.toml").write_text(TINY)
    command = ["simulate", str(folder / "tiny.toml"), *EPOCHS, "--json", "--out"]
    return digests(CliRunner().invoke(app, [*command, str(folder / "run")]).stdout)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_ended_goes_on_to_the_digest_of_an_unbroken_one(
    call: Call,
    start: Callable[..., subprocess.Popen[str]],
    recipe: Path,
    tmp_path: Path,
    end: signal.Signals,
    unbroken: tuple[str, str],
) -> None:
    process = start("simulate", recipe, *EPOCHS, "--out", "broken", "--checkpoint-every", "0.2")
    wait_for_checkpoint(tmp_path / "broken", process)
    process.send_signal(end)
    out, err = process.communicate(timeout=PATIENCE)
    assert out == ""
    if end is signal.SIGINT:
        assert process.returncode == 130
        assert "stopped; resume with: fedoptima simulate --resume broken" in err
        assert "Traceback" not in err
    assert not Path("broken/summary.json").exists()

    resumed = call("simulate", "--resume", "broken", "--json")
    assert digests(resumed.out) == unbroken


def test_ctrl_c_ends_at_once_while_there_is_nothing_to_save() -> None:
    with Interrupt(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_waits_while_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception inside its initialisation aborts the process."""
    with Interrupt():
        monkeypatch.setattr(torch.__spec__, "_initializing", True)
        signal.raise_signal(signal.SIGINT)  # nothing happens
        monkeypatch.setattr(torch.__spec__, "_initializing", False)
        with pytest.raises(KeyboardInterrupt):
            threading.Event().wait(60.0)


def test_the_first_ctrl_c_of_a_run_asks_and_the_second_ends_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Interrupt() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        assert "press Ctrl-C again to end at once" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("hang_up")
def test_a_closed_terminal_asks_once_however_often_it_is_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The shell and the system send one each."""
    with Interrupt() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert interrupted()
    signal.raise_signal(signal.SIGHUP)
    assert "stopping after this step" in capfd.readouterr().err


@pytest.mark.usefixtures("hang_up")
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_terminal_that_is_closed_while_a_run_stops_does_not_end_it_at_once(
    first: signal.Signals,
) -> None:
    with Interrupt() as interrupted:
        assert not interrupted()
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGHUP)
        assert interrupted()


@pytest.mark.usefixtures("hang_up")
def test_under_nohup_a_closed_terminal_is_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupt() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGHUP)
        assert not interrupted()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_afterwards_ctrl_c_is_what_it_was_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
