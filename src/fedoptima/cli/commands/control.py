"""``fedoptima pause`` and ``fedoptima stop``: a run that another terminal is executing."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fedoptima.cli.options as options
from fedoptima.core.errors import ConfigError
from fedoptima.display.console import say, stderr, stdout
from fedoptima.trace.description import Mode
from fedoptima.trace.run_folder import write_whole

if TYPE_CHECKING:
    from fedoptima.experiments.run_directory import RunDirectory

Run = Annotated[Path, options.RUN]
Wait = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", help="How long to wait for the run to end.", min=0),
]


def pause(run: Run, wait: Wait = 60.0) -> None:
    """Pause a run that another terminal executes: it saves a checkpoint and its process ends.

    Like Ctrl-C there. --resume continues it; devices on the network are notified.
    """
    from fedoptima.experiments.run_directory import PAUSE

    paused = _asked(run, PAUSE, wait)
    if paused.over:  # it had come to its end meanwhile
        _say(f"the run is over; its result is in {paused.summary}")
    elif not paused.begun:
        _say("stopped before it had begun: there is nothing to resume")
    else:
        _say(f"paused; resume with: {resume_command(paused)}")


def stop(run: Run, wait: Wait = 60.0) -> None:
    """End a run that another terminal executes: a last evaluation, and its result is written.

    --resume RUN --extend can still continue it later.
    """
    from fedoptima.experiments.run_directory import STOP

    stopped = _asked(run, STOP, wait)
    if not stopped.over:  # over the network, before there was a plan
        _say(f"stopped before the training began; resume with: {resume_command(stopped)}")
        return
    result = stopped.read_result()
    reached = f" after {result.curve[-1].epochs:g} epochs" if result.curve else ""
    _say(
        f"ended{reached}: {result.reason}; its result is in {stopped.summary}\n"
        f"to continue it later: {resume_command(stopped, '--extend', 'stop.epochs=N')}"
    )


def resume_command(run: RunDirectory, *options: str) -> str:
    """Addresses and certificates of a server are not in its run's folder: a word about them."""
    from fedoptima.cli.recipe_options import allowance

    _, recipe, _ = run.open(run.path)
    command, besides = ["fedoptima", "simulate", "--resume", str(run.path)], ""
    if run.description.mode is Mode.NETWORK:
        command = ["fedoptima", "server", "--resume", "--run-dir", str(run.path)]
        besides = "\nand with its other options: --listen, certificates, lists of devices"
        if run.states.is_dir():
            command, besides = ["fedoptima", "run", "--resume", str(run.path)], ""
    return shlex.join([*command, *allowance(recipe), *options]) + besides


def _asked(path: Path, wish: str, wait: float) -> RunDirectory:
    from fedoptima.experiments.run_directory import RunDirectory

    run, _, _ = RunDirectory.open(path)
    if not run.executed:
        if run.over:
            raise ConfigError(f"{path}: this run is over; its result is in {run.summary}")
        raise ConfigError(
            f"{path}: no process on this machine is executing this run; it can be resumed with: "
            f"{resume_command(run)}"
        )
    write_whole(run.control, wish)
    say(stderr(), f"asked the run to {wish}; waiting for its present step")
    end = time.monotonic() + wait
    while run.executed:
        if time.monotonic() > end:
            raise ConfigError(
                f"{path}: has not ended within {wait:g} s; it will when its present step is done"
            )
        time.sleep(0.1)
    run.control.unlink(missing_ok=True)
    return RunDirectory(path)


def _say(text: str) -> None:
    stdout().print(text, soft_wrap=True)
