"""``fedoptima reproduce``: the paper's figures, worked off in as many pieces as needed."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding

import fedoptima.cli.many_runs as many_runs
import fedoptima.cli.options as options
from fedoptima.cli.errors import FAILED, INTERRUPTED, complain, warn
from fedoptima.cli.logs import log_to_console
from fedoptima.core.errors import ConfigError
from fedoptima.display.comparison_progress import pool_view
from fedoptima.display.console import plain_table, stderr, stdout
from fedoptima.display.interrupt import Interrupt

if TYPE_CHECKING:
    from fedoptima.reproduction.catalogue import Catalogue, Figure
    from fedoptima.reproduction.planned import Planned
    from fedoptima.reproduction.records import Records


class Only(StrEnum):
    dry = "dry"
    training = "training"
    plan = "plan"


def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FIGURE]...", help="Which; --list names them.  [default: all]"),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Name the figures, and say how many runs each has.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="All of it on handwritten digits: minutes on a laptop.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seeds of each run.  [default: 3; 1 if quick]", min=1),
    ] = None,
    only: Annotated[Only | None, typer.Option(help="Only runs of this kind.")] = None,
    workloads: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Only runs of these workloads.  [default: all]"),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Only runs of these methods.  [default: all]"),
    ] = None,
    limit_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Stop after this time; the same command continues later.", min=0
        ),
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Take over finished runs of this folder, e.g. from another machine. Repeatable.",
        ),
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Run nothing: draw what is finished.")
    ] = False,
    jobs: many_runs.Jobs = None,
    on: many_runs.On = many_runs.Where.processes,
    cpus: many_runs.Cpus = None,
    gpus: many_runs.Gpus = None,
    retries: many_runs.Retries = None,
    device: options.ComputeDevice = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the data sets are.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Results; what is there is kept.  [default: runs/paper, or runs/paper-quick]",
        ),
    ] = None,
    recipes: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Figures and recipes.  [default: recipes/paper]"),
    ] = None,
    commit: Annotated[
        str, typer.Option(metavar="HASH", help="The commit to record, where there is no git.")
    ] = "",
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folders of finished runs, with their traces.")
    ] = False,
    checkpoint_every: options.CheckpointEvery = 60.0,
    quiet: options.Quiet = False,
) -> None:
    """Reproduce the figures of the FedOptima paper: run what is missing, draw what is there.

    A finished run is never repeated, also after a kill: call the same command again. Runs of
    several machines are put together with --merge.
    """
    from fedoptima.comparison.spec import chosen_methods
    from fedoptima.experiments.given import Given
    from fedoptima.reproduction.catalogue import FOLDER, read_catalogue
    from fedoptima.reproduction.planned import SEEDS, Choice, distinct, queue
    from fedoptima.reproduction.records import Records

    catalogue = read_catalogue(recipes or FOLDER, quick=quick)
    chosen = catalogue.chosen(figures or [])
    folder = out or Path("runs", "paper-quick" if quick else "paper")
    choice = Choice(seeds or (1 if quick else SEEDS), device, str(data) if data else None)
    planned = queue(catalogue, chosen, choice)
    records = Records(folder)
    if list_:
        _show(chosen, planned, records)
        return
    for other in merge or []:
        stderr().print(f"{records.merge(other)} runs taken over from {other}", soft_wrap=True)
    code = 0
    on_these = catalogue.chosen_workloads(workloads)
    with_these = chosen_methods(methods, Given()) if methods else None
    wanted = [
        run
        for run in distinct(list(planned.values()))
        if only in (None, run.kind)
        and run.workload in on_these
        and (with_these is None or run.case.method in with_these)
    ]
    if not draw:
        place = many_runs.place(on, cpus, gpus, retries)
        execution = many_runs.Execution("reproduce", jobs, place, checkpoint_every, quiet)
        code = _work(wanted, records, execution, limit_seconds, commit, keep)
    _draw(catalogue, chosen, planned, records)
    if not quick:
        _tell(catalogue, planned, records)
    left = sum(run.id not in records for run in wanted)
    stdout().print(
        f"{len(wanted) - left} of {len(wanted)} runs are finished; results in {folder}",
        soft_wrap=True,
    )
    if code:
        raise typer.Exit(code)


def _work(
    wanted: Sequence[Planned],
    records: Records,
    asked: many_runs.Execution,
    limit: float | None,
    commit: str,
    keep: bool,
) -> int:
    """The exit code."""
    from fedoptima.comparison.many_runs import Execution
    from fedoptima.experiments.run_directory import RunDirectory, make_folder
    from fedoptima.reproduction.work import Session, work

    make_folder(records.folder)
    title = f"{len(wanted)} runs in {records.folder}"
    with (
        RunDirectory(records.folder).taken(),  # two would write the same files
        Interrupt() as stopped,
        log_to_console(stderr(), logging.WARNING),
        pool_view(title, quiet=asked.quiet) as view,
    ):
        ends = _either(stopped, limit)
        execution = Execution(asked.jobs, asked.on, asked.checkpoint_every, view.show, ends)
        command = shlex.join(["fedoptima", *sys.argv[1:]])
        outcome = work(wanted, records, Session(execution, command, commit, keep))
        interrupted = stopped.wanted
    for failure in outcome.failed:
        complain(failure)
    if interrupted:
        stderr().print("stopped; the same command continues", soft_wrap=True)
        return INTERRUPTED
    return FAILED if outcome.failed else 0


def _either(stopped: Callable[[], bool], limit: float | None) -> Callable[[], bool]:
    end = None if limit is None else time.monotonic() + limit
    return lambda: stopped() or (end is not None and time.monotonic() >= end)


def _draw(
    catalogue: Catalogue,
    figures: Mapping[str, Figure],
    planned: Mapping[str, Sequence[Planned]],
    records: Records,
) -> None:
    from fedoptima.reproduction.figures import (
        PAGE,
        PICTURES,
        all_charts,
        write_page,
        write_pictures,
    )

    charts = all_charts(catalogue, figures, planned, records)
    write_pictures(charts, figures, records.folder / PICTURES)
    try:
        write_page(charts, figures, records.folder / PAGE)
    except ConfigError as error:  # plotly is an extra; the pictures are there without it
        warn(f"no interactive page: {error}")


def _tell(catalogue: Catalogue, planned: Mapping[str, Sequence[Planned]], records: Records) -> None:
    from fedoptima.reproduction.document import DOCUMENT, Reproduction, as_markdown
    from fedoptima.reproduction.verdicts import read_reasons
    from fedoptima.trace.run_folder import write_whole

    found = Reproduction(catalogue, planned, records, read_reasons(records.folder))
    write_whole(records.folder / DOCUMENT, as_markdown(found))


def _show(
    figures: Mapping[str, Figure], planned: Mapping[str, Sequence[Planned]], records: Records
) -> None:
    from fedoptima.reproduction.planned import distinct

    console = stdout()
    table = plain_table("figure", "paper", "kind", "shows", "runs", "done", left=4)
    for column in table.columns[:3]:
        column.no_wrap = True
    for name, figure in figures.items():
        runs = {run.id for run in distinct([planned[name]])}
        done = sum(run in records for run in runs)
        table.add_row(name, figure.place, figure.kind, figure.title, str(len(runs)), str(done))
    console.print(Padding(table, (0, 0, 0, 0), expand=False))
    every = distinct(list(planned.values()))
    dry = sum(run.kind != "training" for run in every)
    console.print(
        f"\n{len(every)} runs, because figures share some: {dry} dry, {len(every) - dry} training. "
        f"For example: fedoptima reproduce {next(iter(figures))} --quick"
    )
