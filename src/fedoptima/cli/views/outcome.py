"""A result as tables: what came out, and how every node spent its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from fedoptima.analysis.formatting import (
    accuracies,
    brief,
    busy,
    counted,
    duration,
    megabytes,
    percent,
)
from fedoptima.display.console import plain_table, stdout

if TYPE_CHECKING:
    from rich.table import Table

    from fedoptima.analysis.idle_time import Usage
    from fedoptima.experiments.result import Result

_MOST_DEVICES = 16  # shown one by one
_DIGEST = 12  # characters; summary.json has all of them


def show_result(result: Result, *, time: str = "virtual time") -> None:
    """``time``: what the run's clock showed."""
    console = stdout()
    title = f"{result.name}: {result.method}, seed {result.seed}"
    console.print(Text.assemble((title, "bold"), f" - {result.reason}"))
    for table in (_figures(result, time), _times(result)):
        console.print()
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
    if result.directory is not None:
        console.print(f"\nresults in {result.directory}", soft_wrap=True)


def _figures(result: Result, time: str) -> Table:
    table = plain_table("", "", left=2)
    table.show_header = False
    seconds = result.seconds or 1.0
    throughput = f"{brief(result.device_samples / seconds)} samples/s on the devices"
    if sent := result.summary.forwarded_samples:
        throughput += f" and {brief(sent / seconds)} only sent"
    if result.server_samples:
        throughput += f", {brief(result.server_samples / seconds)} on the server"
    if again := result.summary.reused_samples:
        throughput += f" and {brief(again / seconds)} reused"
    throughput += f"; {brief(result.useful_samples / seconds)} useful"
    if result.accuracy is not None:
        table.add_row("accuracy", accuracies(result.accuracy, result.best_accuracy))
    if result.test_accuracy is not None:
        table.add_row(
            "test accuracy",
            f"{percent(result.test_accuracy)} (the accuracy above: validation data)",
        )
    if result.curve and (figures := result.curve[-1].in_words):
        table.add_row("figures", figures)
    table.add_row(time, duration(result.seconds))
    rounds, merges = counted(result.rounds, "round"), counted(result.versions, "merge")
    table.add_row("epochs", f"{result.epochs:.1f} ({rounds}, {merges})")
    if result.split_after:
        blocks = f"{result.split} block{'s' if result.split > 1 else ''} on the devices"
        table.add_row("split", f"after {result.split_after}: {blocks}")
    usage = result.summary.server_usage
    shares = f"server {busy(usage.utilisation, usage.reused_share)}"
    table.add_row("busy", f"{shares}, devices {percent(result.device_utilisation)}")
    table.add_row("throughput", throughput)
    table.add_row(
        "traffic", f"{megabytes(result.bytes_up)} up, {megabytes(result.bytes_down)} down"
    )
    if result.refused:
        why = "too late, or of a model that a restart undid"
        samples = f"{result.refused_samples:,} samples, in no epoch"
        table.add_row("refused", f"{result.refused} updates, {why} ({samples})")
    if result.late_batches:
        table.add_row("late", f"{result.late_batches} activation batches, no free slot")
    weights = f", weights {result.weights_digest[:_DIGEST]}" if result.weights else ""
    table.add_row("digests", f"trace {result.trace_digest[:_DIGEST]}{weights}")
    return table


def _times(result: Result) -> Table:
    from fedoptima.analysis.idle_time import Usage
    from fedoptima.core.types import SERVER

    devices = {node: use for node, use in result.usage.items() if node != SERVER}
    idlest = sorted(devices, key=lambda node: devices[node].utilisation)[:_MOST_DEVICES]
    shown = devices if len(devices) <= _MOST_DEVICES else {node: devices[node] for node in idlest}

    def row(name: str, uses: list[Usage]) -> None:
        """The mean of some nodes: seconds an epoch, and the share of their time."""
        use, cells = Usage.mean(uses), []
        for idle in (use.idle_1, use.idle_2):
            cells += [f"{result.summary.per_epoch(idle):.2f}", percent(idle / (use.span or 1.0))]
        again = [percent(use.reused_share)] if reused else []
        table.add_row(name, percent(use.utilisation), *again, *cells)

    reused = any(use.reused for use in result.usage.values())
    columns = ("busy", *(["reused"] if reused else []))
    table = plain_table("", *columns, "idle I, s/epoch", "", "idle II, s/epoch", "")
    row(SERVER, [result.usage[SERVER]])
    for node, use in shown.items():
        row(node, [use])
    if len(shown) < len(devices):
        table.add_row(f"({len(devices) - len(shown)} busier ones)")
    if len(devices) > 1:
        row(f"all {len(devices)} devices", list(devices.values()))
    return table
