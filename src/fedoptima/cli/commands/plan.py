"""``fedoptima plan``: where the model is cut, what that costs, and what will be the limit."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

import fedoptima.cli.options as options
from fedoptima.analysis.formatting import brief, busy, listed, mebibytes, percent
from fedoptima.cli.errors import warn
from fedoptima.cli.logs import log_to_console
from fedoptima.cli.recipe_options import naming, read_recipe
from fedoptima.display.console import plain_table, stderr, stdout
from fedoptima.display.progress import view_of

if TYPE_CHECKING:
    from rich.table import Table

    from fedoptima.experiments.planned_form import Tried
    from fedoptima.experiments.setup import Experiment
    from fedoptima.prediction.planning import Prediction, ServerMemory

_GIGA = 1e9
_INDENT = (0, 0, 0, 2)
_REJECTED = 6  # forms that are shown


def plan(
    recipe: Annotated[Path, options.RECIPE],
    method: options.Method = None,
    sets: options.Sets = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show the split and the predicted throughput.

    Also what each split would cost, the server's memory, and what will be the bottleneck.
    """
    changed = read_recipe(recipe, method=method, sets=sets)
    from fedoptima.experiments.given import Given
    from fedoptima.prediction.planning import predict_recipe

    with (
        naming(recipe),
        log_to_console(stderr(), logging.WARNING),
        view_of(changed, quiet=as_json) as view,
    ):
        experiment, prediction = predict_recipe(changed, Given(), view.reading)
    if as_json:
        typer.echo(prediction.to_json())
        return
    console = stdout()
    title = f"{changed.name}: {changed.method.name}"
    about = f" - {len(experiment.fleet.devices)} devices, batches of {changed.training.batch_size}"
    console.print(Text.assemble((title, "bold"), about))
    if prediction.form is not None:
        _show_form(console, experiment, prediction, prediction.form)
    if prediction.candidates:
        _show_split(console, experiment, prediction)
    else:
        _show_whole(console, experiment, prediction)
    console.print(Padding(_figures(prediction), _INDENT, expand=False))
    limit = f" {prediction.bottleneck} - {prediction.explanation}"
    console.print(Text.assemble(("\nbottleneck:", "bold"), limit))
    for warning in prediction.warnings:
        warn(warning)


def _show_form(
    console: Console, experiment: Experiment, prediction: Prediction, chosen: Tried
) -> None:
    """What FedOptima+ chose, and the best of what it rejected."""
    table = plain_table("  form", "samples/s", "trained on", "server busy", "", left=1)
    for one in (chosen, *prediction.rejected[:_REJECTED]):
        mark = ">" if one is chosen else " "
        figures = (brief(one.useful), percent(one.trained_share), percent(one.server_busy))
        style = "bold" if one is chosen else ""
        table.add_row(f"{mark} {one.form}", *figures, one.why, style=style)
    console.print()
    console.print(Padding(table, _INDENT, expand=False))
    again = experiment.method.resolved["reuse"]
    reused = "reuses none"
    if isinstance(again, Mapping):
        how = ", ".join(f"{key} = {value}" for key, value in again.items() if value is not None)
        reused = f"reuses activations: {how}"
    console.print(
        f"\n  Fresh samples through the whole network; {len(prediction.rejected)} other forms were "
        f"tried by dry runs.\n  The server {reused}."
    )


def _show_split(console: Console, experiment: Experiment, prediction: Prediction) -> None:
    chosen, unusual = prediction.plan, experiment.unusual
    names = [device for device in experiment.fleet.devices if device not in unusual]
    table = plain_table(
        "  after", "GFLOP", "MiB", "train ms", "send ms", "paper ms", "measured", "slowest"
    )
    table.padding = (0, 1, 0, 0)  # devices have long names
    table.columns[0].no_wrap = True
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    rows = zip(chosen.table, *prediction.candidates.values(), strict=True)
    marked = {cut.split for cut in chosen.cuts} or {chosen.split}
    order = list(prediction.candidates)
    for row, *either in rows:
        by = dict(zip(order, either, strict=True))
        table.add_row(
            f"{'>' if row.split in marked else ' '} {row.split} {row.name}",
            brief(row.device_flops / _GIGA),
            brief(row.activation_bytes / 2**20),
            brief(row.train_seconds * 1000),
            brief(row.transfer_seconds * 1000),
            brief(by["paper"].bottleneck_seconds * 1000),
            brief(by["measured"].bottleneck_seconds * 1000),
            names[row.slowest],
            style="bold" if row.split in marked else "",
        )
    console.print()
    console.print(Padding(table, _INDENT, expand=False))
    console.print(
        f"\n  One batch on the slowest device, its work as {chosen.objective!r} counts it;"
        "\n  then the longer of train and send as either objective counts.\n"
    )
    if prediction.cuts:
        _show_cuts(console, prediction, experiment.recipe.training.batch_size)


def _show_cuts(console: Console, prediction: Prediction, batch: int) -> None:
    """Which devices have which cut."""
    plan, table = prediction.plan, plain_table("  devices", "blocks", "last", "auxiliary", left=3)
    for cut in plan.cuts:
        devices = [device for device, split in prediction.cuts.items() if split == cut.split]
        extra = cut.auxiliary_profile
        table.add_row(
            f"  {listed(devices)}" if devices else "  none, if nothing changes",
            str(cut.split),
            plan.blocks[cut.split - 1].name,
            f"{extra.parameters:,} parameters" if extra else "",
        )
    console.print(Padding(table, _INDENT, expand=False))
    limit = prediction.plan.sample_seconds * batch
    own = f"as many blocks as it manages in {brief(limit)} s a batch" if limit else "its own"
    console.print(
        f"\n  Each device has {own}; when its link or speed changes for good, another one.\n"
    )


def _show_whole(console: Console, experiment: Experiment, prediction: Prediction) -> None:
    console.print("\n  Nothing is split: every device trains the whole model.\n")
    batch = experiment.recipe.training.batch_size
    table = plain_table("block", "GFLOP forward", "GFLOP backward", "parameters")
    blocks = prediction.plan.blocks
    for block in blocks:
        work = (block.forward_flops * batch, block.backward_flops * batch)
        table.add_row(
            block.name, *(brief(flops / _GIGA) for flops in work), f"{block.parameters:,}"
        )
    table.add_row(
        "all, one batch",
        brief(sum(block.forward_flops for block in blocks) * batch / _GIGA),
        brief(sum(block.backward_flops for block in blocks) * batch / _GIGA),
        f"{sum(block.parameters for block in blocks):,}",
        style="bold",
    )
    console.print(Padding(table, _INDENT, expand=False))
    console.print()


def _figures(prediction: Prediction) -> Table:
    table = plain_table("", "", left=2)
    table.show_header = False
    if prediction.memory is not None:
        _add_split(table, prediction, prediction.memory)
    table.add_row("work", "FLOPs as counted in a run of each block")
    for block, operations in prediction.plan.by_formula.items():
        table.add_row("", f"{block}: one per element written by {listed(operations)}")
    paces = prediction.devices.values()
    table.add_row("iteration", _range(pace.iteration for pace in paces))
    table.add_row("round", _range(pace.round for pace in paces))
    devices = f"{brief(prediction.device_samples_per_second)} samples/s"
    if prediction.forwarded_samples_per_second:
        devices += f" trained on, {brief(prediction.forwarded_samples_per_second)} only sent"
    table.add_row("devices", devices)
    useful = f"{brief(prediction.useful_samples_per_second)} samples/s through the whole network"
    table.add_row("useful", useful)
    up, down = (
        f"{brief(n / 1e6)} MB/s" for n in (prediction.up_per_second, prediction.down_per_second)
    )
    table.add_row("traffic", f"{up} up, {down} down")
    if prediction.server_capacity is not None:
        _add_rates(table, prediction, prediction.server_capacity)
    return table


def _range(seconds: Iterable[float]) -> str:
    least, *_, most = sorted([*seconds] * 2)
    return f"{brief(least)} to {brief(most)} s"


def _add_split(table: Table, prediction: Prediction, memory: ServerMemory) -> None:
    plan, extra = prediction.plan, prediction.plan.auxiliary_profile
    name = plan.blocks[plan.split - 1].name
    where = "that all devices have; the server begins there" if plan.cuts else "on the device"
    table.add_row("split", f"after {name}: {plan.split} of {len(plan.blocks)} blocks {where}")
    if extra is not None:
        table.add_row("auxiliary", f"{plan.auxiliary}, {extra.parameters:,} parameters")
        side = prediction.auxiliary_pooling
        if side > 1:
            table.add_row("", f"features are averaged over {side} x {side} before its dense layer")
    else:
        table.add_row("auxiliary", "none: devices wait for the server's gradients")
    if plan.micro_batches > 1:
        table.add_row("micro-batches", f"{plan.micro_batches} parts of a mini-batch in flight")
    batches = len(prediction.devices) if memory.cap is None else memory.cap
    symbol = "K" if memory.cap is None else "omega"
    sizes = f"{mebibytes(memory.model)} + {batches} x {mebibytes(memory.activation)}"
    table.add_row("server memory", f"{mebibytes(memory.shared)} = {sizes}")
    table.add_row("", f"(model + {symbol} x activations, one model for all devices)")
    table.add_row("", f"{mebibytes(memory.copies)} with a copy of the model for every device")
    if memory.kept:
        table.add_row("", f"and up to {mebibytes(memory.kept)} of batches to be used again")


def _add_rates(table: Table, prediction: Prediction, capacity: float) -> None:
    shares = busy(prediction.server_busy, prediction.server_reused)
    said = f"the server is busy {shares} of its time"
    table.add_row("activations", f"{brief(prediction.batches_per_second)} batches/s; {said}")
    table.add_row("", f"{brief(prediction.offered)} that devices and uplinks could send")
    table.add_row("", f"{brief(capacity)} that the server could train on")
    turnarounds = [pace.turnaround for pace in prediction.devices.values() if pace.turnaround]
    if turnarounds:
        table.add_row("turnaround", f"{_range(turnarounds)} from a turn-on to its batch")
