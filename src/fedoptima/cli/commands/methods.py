"""``fedoptima methods``: what there is to train with."""

from __future__ import annotations

from rich.padding import Padding
from rich.text import Text

from fedoptima.cli.console import plain_table, stdout

_DEVICES = 8  # to build a method with; none of what is shown depends on it


def methods() -> None:
    """List the training methods and their options."""
    from inspect import getdoc, getmodule

    from fedoptima.core.programs import build_program
    from fedoptima.methods.registry import METHODS, method_options

    console = stdout()
    for name, build in METHODS.items():
        method = build(_DEVICES)
        about = (getdoc(getmodule(build)) or name).splitlines()[0]
        console.print(Text.assemble((name, "bold"), f"  {about}"))
        table = plain_table("", "", left=2)
        table.show_header = False
        table.add_row("program", type(build_program(method.program, 0)).__name__)
        table.add_row("server training", method.training.value)
        table.add_row("aggregation", type(method.aggregation()).__name__)
        table.add_row("scheduler", type(method.scheduler()).__name__)
        table.add_row("flow", type(method.flow()).__name__)
        options = (f"{key} = {_default(value)}" for key, value in method_options(name).items())
        table.add_row("options", ", ".join(options) or "none")
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
        console.print()


def _default(value: object) -> str:
    return "(unset)" if value is None else repr(value)
