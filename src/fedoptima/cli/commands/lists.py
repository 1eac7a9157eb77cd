"""``fedoptima methods``, ``datasets`` and ``fleets``: what there is to train with, and on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from fedoptima.display.console import plain_table, stdout

_DEVICES = 8  # to build a method with; none of what is shown depends on it


def methods(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only these.", show_default=False),
    ] = None,
) -> None:
    """List the training methods and their options."""
    from inspect import getdoc, getmodule

    from fedoptima.methods.registry import METHODS, find_method, options_of
    from fedoptima.named_code import offered

    console = stdout()
    known = (*METHODS, *(name for name in offered("methods") if name not in METHODS))
    for name in names or known:
        build = find_method(name)
        method = build(_DEVICES)
        own = None if name in METHODS else getdoc(build)
        about = (own or getdoc(getmodule(build)) or name).splitlines()[0]
        console.print(Text.assemble((name, "bold"), f"  {about}"))
        table = plain_table("", "", left=2)
        table.show_header = False
        table.add_row("program", method.program.kind)
        table.add_row("server training", method.training.value)
        table.add_row("aggregation", type(method.aggregation()).__name__)
        table.add_row("scheduler", type(method.scheduler()).__name__)
        table.add_row("flow", type(method.flow()).__name__)
        options = (f"{key} = {_default(value)}" for key, value in options_of(build).items())
        table.add_row("options", ", ".join(options) or "none")
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
        console.print()


def _default(value: object) -> str:
    return "(unset)" if value is None else repr(value)


def datasets(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Look in this directory.")
    ] = None,
) -> None:
    """List the data sets and where they are."""
    from fedoptima.data.layouts import data_directories
    from fedoptima.data.registry import DATASETS, OWN_FILES

    console = stdout()
    for item in DATASETS.values():
        console.print(Text.assemble((item.name, "bold"), f"  {item.description}"))
        size = f"{item.kind}, {item.train:,} training and {item.test:,} test samples"
        found = item.where(data)
        if found is not None:
            where = Text.assemble(("found", "green"), f" in {found}")
        else:
            where = Text.assemble(("not found", "yellow"), f"; get it from {item.home}")
        for line in (Text(size), where):
            console.print(Padding(line, (0, 0, 0, 2), expand=False))
    for name, files in OWN_FILES.items():
        console.print(Text.assemble((name, "bold"), f"  {files.description}"))
        options = Text(f"options: {', '.join(files.options.model_fields)}")
        console.print(Padding(options, (0, 0, 0, 2), expand=False))
    looked = ", ".join(str(folder) for folder in data_directories(data))
    console.print(f"\nLooked in {looked} (change it with --data, FEDOPTIMA_DATA or data.directory)")


def fleets() -> None:
    """List the fleets that come with the package."""
    from fedoptima.config.fleet import FleetConfig
    from fedoptima.config.load import read_toml, validate
    from fedoptima.sim.fleet import about, presets

    console = stdout()
    for name, path in presets().items():
        fleet = validate(FleetConfig, read_toml(path), str(path))
        devices = sum(group.count for group in fleet.devices)
        speed = f", server {fleet.server.gflops:g} GFLOP/s" if fleet.server else ""
        console.print(Text.assemble((name, "bold"), f"  {devices} devices{speed}"))
        console.print(Padding(Text(about(path)), (0, 0, 0, 2), expand=False))
        table = plain_table("devices", "count", "GFLOP/s", "Mbps up", "Mbps down")
        for group in fleet.devices:
            links = (group.up_mbps or group.mbps, group.down_mbps or group.mbps)
            figures = (group.count, group.gflops, *links)
            table.add_row(group.name, *(f"{figure:g}" for figure in figures))
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
        console.print()
    console.print("Use one with --set 'fleet={preset=\"testbed_a\"}', or describe your own.")
