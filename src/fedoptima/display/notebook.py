"""Progress in a notebook: HTML in the cell's output, which is gone at the end."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from fedoptima.analysis.formatting import duration
from fedoptima.config.schema import Recipe
from fedoptima.display.comparison_progress import name_of, progress_of
from fedoptima.display.progress import Refresh, state_of
from fedoptima.display.silent import RunState, SilentPool, SilentView, Watch


class _Cell:
    """One place in the output that is written over."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._is_time = Refresh()

    def show(self, html: str, *, now: bool = False) -> None:
        from IPython.display import HTML, display

        if not self._is_time() and not now:
            return
        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))

    def clear(self) -> None:
        if self._handle is not None:
            self.show("", now=True)


class NotebookView(SilentView):
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._cell = _Cell()

    def __exit__(self, *error: object) -> None:
        self._cell.clear()

    def reading(self, what: str, done: int, total: int) -> None:
        share = done / total if total else None
        self._cell.show(_bar(what, share, f"{done:,} of {total:,}"))

    def training(self, watch: Watch) -> None:
        state = state_of(watch, self._recipe)
        lines = (f"virtual time {duration(state.seconds)}", state.quality_text, state.busy_text)
        self._cell.show(
            _bar("training", state.share, state.done)
            + f"<div>{escape(', '.join(filter(None, lines)))}</div>"
        )


class NotebookPool(SilentPool):
    def __init__(self) -> None:
        self._cell = _Cell()

    def __exit__(self, *error: object) -> None:
        self._cell.clear()

    def show(self, states: Sequence[RunState]) -> None:
        shown = [state for state in states if not state.over and state.phase != "waiting"]
        over = sum(state.over for state in states)
        bars = (_bar(name_of(state), state.share, progress_of(state)) for state in shown)
        self._cell.show(
            "".join(bars) + f"<div>{over} of {len(states)} runs</div>", now=over == len(states)
        )


def _bar(what: str, share: float | None, done: str) -> str:
    """Without a share the bar only shows that something moves."""
    value = f' value="{share:.4f}"' if share is not None else ""
    return f"<div>{escape(what)} <progress{value}></progress> {escape(done)}</div>"
