"""Which view suits a call from Python. rich is loaded only where something is shown."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal

from fedoptima.display.silent import SilentCounter, SilentPool, SilentView

if TYPE_CHECKING:
    from fedoptima.config.schema import Recipe
    from fedoptima.trace.record import RecordProgress

Place = Literal["nowhere", "lines", "terminal", "notebook"]


def place_of(progress: bool | None) -> Place:
    """``progress``: asked for or not; None: where somebody watches, and never in a pipe."""
    if progress is False:
        return "nowhere"
    if in_notebook():
        return "notebook"
    if sys.stderr is not None and sys.stderr.isatty():
        return "terminal"
    return "lines" if progress else "nowhere"


def in_notebook() -> bool:
    """Also JupyterLab, Colab and the like: IPython with a kernel."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return getattr(shell, "kernel", None) is not None


def run_view(recipe: Recipe, progress: bool | None) -> SilentView:
    match place_of(progress):
        case "nowhere":
            return SilentView()
        case "notebook":
            from fedoptima.display.notebook import NotebookView

            return NotebookView(recipe)
        case _:
            from fedoptima.display.progress import view_of

            return view_of(recipe, quiet=False)


def runs_view(title: str, progress: bool | None) -> SilentPool:
    """``title`` is said when the first run begins."""
    match place_of(progress):
        case "nowhere":
            return SilentPool()
        case "notebook":
            from fedoptima.display.notebook import NotebookPool

            return NotebookPool()
        case _:
            from fedoptima.display.comparison_progress import pool_view

            return pool_view(title, quiet=False)


def counting(progress: RecordProgress | bool | None) -> AbstractContextManager[RecordProgress]:
    """Of records that are gone through. Notebooks show nothing: it takes seconds."""
    if callable(progress):
        return nullcontext(progress)
    if place_of(progress) in ("nowhere", "notebook"):
        return SilentCounter()
    from fedoptima.display.progress import RecordCounter

    return RecordCounter(quiet=False)


def tell(line: str) -> None:
    """Someone who watches, also in a notebook, where stderr is the cell's."""
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
