"""``fedoptima datasets``: what there is to train on, and whether it is here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from fedoptima.cli.console import stdout


def datasets(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Look in this directory."),
    ] = None,
) -> None:
    """List the data sets and where they are."""
    from fedoptima.data.layouts import data_directories
    from fedoptima.data.registry import available

    console = stdout()
    for item in available(data):
        console.print(Text.assemble((item.name, "bold"), f"  {item.description}"))
        size = f"{item.kind}, {item.train:,} training and {item.test:,} test samples"
        if item.found is not None:
            where = Text.assemble(("found", "green"), f" in {item.found}")
        else:
            where = Text.assemble(("not found", "yellow"), f"; get it from {item.home}")
        for line in (Text(size), where):
            console.print(Padding(line, (0, 0, 0, 2), expand=False))
    looked = ", ".join(str(folder) for folder in data_directories(data))
    console.print(f"\nLooked in {looked} (change it with --data, FEDOPTIMA_DATA or data.directory)")
