"""What `compare`, `sweep` and `tune` share: their options, and the runs watched until they end."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedoptima.cli.errors import FAILED, INTERRUPTED, complain
from fedoptima.cli.logs import log_to_console
from fedoptima.core.errors import ConfigError
from fedoptima.display.comparison_progress import pool_view
from fedoptima.display.console import stderr
from fedoptima.display.interrupt import Interrupt

if TYPE_CHECKING:
    from fedoptima.comparison.many_runs import On as Place
    from fedoptima.comparison.result import Comparison


_KINDS = {"compare": "comparison", "sweep": "sweep", "tune": "sweep"}  # what each command makes
_DOING = {"compare": "comparing", "sweep": "sweeping", "tune": "tuning"}


class Where(StrEnum):
    processes = "processes"
    ray = "ray"


Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Replace a value of the recipe; method.X goes to all methods that have X, pipar.X "
        "to PiPar alone.",
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds", metavar="N", help="Run each N times, seeds from the recipe's on.", min=1
    ),
]
SeedList = Annotated[
    list[int] | None,
    typer.Option("--seed", metavar="S", help="Run each with this seed. Repeatable.", min=0),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        help="Runs at a time.  [default: cores, or what a cluster has room for]",
        min=1,
    ),
]
On = Annotated[
    Where,
    typer.Option(
        "--on", help="Processes of this machine, or a Ray cluster: a running one, or one started."
    ),
]
Cpus = Annotated[
    float | None,
    typer.Option("--cpus", metavar="N", help="CPUs of a run on Ray.  [default: its threads]"),
]
Gpus = Annotated[
    float | None,
    typer.Option(
        "--gpus", metavar="N", help="GPUs of a run on Ray, e.g. 0.25.  [default: 1 if it uses one]"
    ),
]
Retries = Annotated[
    int | None,
    typer.Option(
        "--retries",
        metavar="N",
        help="Start a run again after its worker on Ray was lost.  [default: 3]",
    ),
]


@dataclass(frozen=True)
class Execution:
    command: str  # "compare", "sweep" or "tune"
    jobs: int | None
    on: Place
    checkpoint_every: float
    quiet: bool


def place(on: Where, cpus: float | None, gpus: float | None, retries: int | None) -> Place:
    given = {"--cpus": cpus, "--gpus": gpus, "--retries": retries}
    if on is Where.processes:
        wrong = [option for option, value in given.items() if value is not None]
        if wrong:
            raise ConfigError(f"{', '.join(wrong)}: only with --on ray")
        return "processes"
    from fedoptima.comparison.ray_pool import RayShare

    return RayShare(cpus, gpus) if retries is None else RayShare(cpus, gpus, retries)


def one_of(seeds: int | None, seed: list[int] | None) -> int | list[int] | None:
    if seeds is not None and seed:
        raise ConfigError("--seeds N counts up from the recipe's seed, --seed names each: give one")
    return seed or seeds


def resume(
    folder: Path, asked: Mapping[str, object], allowed: Sequence[str], execution: Execution
) -> Comparison:
    """``asked``: options that it has from its start; None: not given."""
    from fedoptima.comparison.folder import about_file
    from fedoptima.comparison.runner import resume_comparison

    kind = _KINDS[execution.command]
    given = [option for option, value in asked.items() if value is not None]
    if given:
        raise ConfigError(
            f"--resume continues a {kind} as it was started: leave out {', '.join(given)}, "
            "or start another one without --resume"
        )
    found = about_file(folder)
    if found is not None and found.stem != kind:
        other = next(command for command, name in _KINDS.items() if name == found.stem)
        raise ConfigError(
            f"{folder}: holds a {found.stem}; resume it with: fedoptima {other} --resume {folder}"
        )
    resumed = partial(resume_comparison, folder, allow_modules=allowed)
    options = [word for module in allowed for word in ("--allow-module", module)]
    return watched(resumed, folder, options, execution)


def watched(
    run: Callable[..., Comparison], folder: Path, options: list[str], execution: Execution
) -> Comparison:
    """``options``: with which it is resumed."""
    from fedoptima.comparison.folder import about_file
    from fedoptima.experiments.simulated_run import Interrupted

    quiet = execution.quiet
    doing = _DOING[execution.command]
    try:
        with (
            Interrupt() as interrupted,
            log_to_console(stderr(), logging.WARNING),
            pool_view(f"{doing} in {folder}", quiet=quiet) as view,
        ):
            return run(
                jobs=execution.jobs,
                on=execution.on,
                checkpoint_every=execution.checkpoint_every,
                progress=False,
                observer=view.show,
                interrupted=interrupted,
            )
    except (Interrupted, KeyboardInterrupt) as stop:
        again = ["fedoptima", execution.command, "--resume", str(folder), *options]
        way_on = f"; resume with: {shlex.join(again)}" if about_file(folder) else ""
        stderr().print(f"stopped{way_on}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from stop


def report_failures(comparison: Comparison) -> None:
    for failure in comparison.failures():
        complain(failure)
    if comparison.failed:
        raise typer.Exit(FAILED)
