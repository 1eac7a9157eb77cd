"""``fedoptima trace``: what happened in a run, in brief or as a file for other programs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

import fedoptima.cli.options as options
from fedoptima.analysis.formatting import counted, duration, percent
from fedoptima.display.console import plain_table, stdout
from fedoptima.display.progress import RecordCounter

if TYPE_CHECKING:
    from fedoptima.analysis.overview import NodeLine, Overview, Wait
    from fedoptima.reporting.trace_export import Traced

_MOST_NODES = 32
_MOST_WAITS = 5


def trace(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The run's folder, or the trace in it.")
    ],
    perfetto: Annotated[
        Path | None,
        typer.Option(
            "--perfetto",
            metavar="FILE",
            help="Write it for ui.perfetto.dev and chrome://tracing; FILE.gz is compressed.",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Write every span as a line of a table."),
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.AsJSON = False,
) -> None:
    """Show where the time of a run went, or write it to files for other programs.

    Works for simulated and real runs, including those still running.
    """
    from fedoptima.reporting.trace_export import trace as trace_run

    with RecordCounter(quiet=quiet) as tell:
        read = partial(tell, f"reading {run}")
        traced = trace_run(run, perfetto=perfetto, csv=csv, progress=read)
    if as_json:
        typer.echo(traced.to_json())
        return
    if perfetto is None and csv is None:
        _show(traced)
    console = stdout()
    if perfetto is not None:
        size = counted(traced.perfetto_events or 0, "event")
        console.print(f"{perfetto}: {size}; open it at https://ui.perfetto.dev", soft_wrap=True)
    if csv is not None:
        console.print(f"{csv}: {counted(traced.csv_lines or 0, 'span')}", soft_wrap=True)


def _show(traced: Traced) -> None:
    console, overview = stdout(), traced.overview
    console.print(Text(traced.title, style="bold"))
    console.print(
        f"{counted(overview.records, 'record')} of {counted(len(overview.nodes), 'node')}: "
        f"{duration(overview.seconds)} of training, {overview.epochs:.1f} epochs"
    )
    console.print()
    _show_nodes(overview)
    console.print()
    table = plain_table("event", "times")
    for name, count in overview.events.items():
        table.add_row(name, f"{count:,}")
    console.print(table)
    if overview.waits:
        console.print("\nthe longest waits", style="bold")
    for wait in overview.waits[:_MOST_WAITS]:
        console.print(_said(wait), soft_wrap=True)


def _show_nodes(overview: Overview) -> None:
    """Seconds and percents stand apart, so that eleven columns fit on a terminal."""
    columns = ("busy s", "%", "idle I", "%", "idle II", "%", "jobs", "batches", "MB out", "MB in")
    table = plain_table("node", *columns)
    table.padding = (0, 1, 0, 0)
    lines = list(overview.nodes.items())
    for name, line in lines[:_MOST_NODES]:
        table.add_row(name, *_cells(line))
    console = stdout()
    console.print(Padding(table, (0, 0, 0, 0), expand=False))
    if len(lines) > _MOST_NODES:
        console.print(f"and {len(lines) - _MOST_NODES:,} more; --json has them all")
    console.print("idle I: waiting for the other side; idle II: waiting for slower devices")
    for name, line in lines:
        if line.usage.reused:
            share = percent(line.usage.reused_share)
            console.print(
                f"{name}: {line.usage.reused:.1f} s ({share}) with reused batches, not in busy; "
                f"{line.reused_batches:,} of them"
            )


def _cells(line: NodeLine) -> list[str]:
    use, cells = line.usage, []
    shares = (use.utilisation, use.idle_1_share, use.idle_2_share)
    for seconds, share in zip((use.busy, use.idle_1, use.idle_2), shares, strict=True):
        cells += [f"{seconds:.1f}", f"{100 * share:.0f}"]
    sizes = [f"{size / 1e6:.1f}" for size in (line.bytes_sent, line.bytes_received)]
    return [*cells, str(line.jobs), str(line.batches), *sizes]


def _said(wait: Wait) -> str:
    from fedoptima.reporting.palette import KIND_NAMES

    begin = f"{duration(wait.start)} after the beginning"
    return f"{wait.node}: {duration(wait.seconds)} {KIND_NAMES[wait.kind]}, {begin}"
