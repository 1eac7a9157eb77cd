"""Progress is shown where somebody watches, and never in a pipe."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest

from fedoptima.analysis.quality import Quality
from fedoptima.display.silent import SilentPool, SilentView
from fedoptima.display.views import counting, place_of, run_view, runs_view
from tests.experiments.runs import run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Notebook:
    """A cell's output: what IPython would be told to show."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.shown: list[str] = []
        display = ModuleType("IPython.display")
        display.HTML = str  # type: ignore[attr-defined]
        display.display = self._display  # type: ignore[attr-defined]
        shell = ModuleType("IPython")
        shell.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "IPython", shell)
        patch.setitem(sys.modules, "IPython.display", display)

    def _display(self, html: str, *, display_id: bool) -> SimpleNamespace:
        self.shown.append(html)
        return SimpleNamespace(update=self.shown.append)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    return Notebook(monkeypatch)


def test_a_pipe_gets_progress_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert place_of(None) == "nowhere"
    assert place_of(True) == "lines"
    assert place_of(False) == "nowhere"


def test_a_terminal_gets_it_unless_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert place_of(None) == "terminal"
    assert place_of(False) == "nowhere"


def test_a_notebook_gets_it_unless_it_is_refused(notebook: Notebook) -> None:
    assert place_of(None) == "notebook"
    assert place_of(False) == "nowhere"


def test_ipython_on_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = ModuleType("IPython")
    shell.get_ipython = lambda: SimpleNamespace()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert place_of(None) == "terminal"


def test_nothing_is_shown_where_nothing_is_wanted() -> None:
    recipe = SimpleNamespace()
    assert type(run_view(recipe, False)) is SilentView  # type: ignore[arg-type]
    assert type(runs_view("title", False)) is SilentPool
    with counting(False) as count:
        count("reading", 3)


def test_whoever_gives_a_function_is_told_the_records() -> None:
    told: list[str] = []
    with counting(lambda what, records: told.append(what)) as count:
        count("reading", 3)
    assert told == ["reading"]


def test_a_run_in_a_pipe_tells_lines_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    run(epochs=1.0)
    assert capsys.readouterr().err == ""
    run(epochs=6.0, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""


def test_a_run_in_a_notebook_shows_a_bar_that_is_gone_at_the_end(notebook: Notebook) -> None:
    run(epochs=3.0)
    first, *_, last = notebook.shown
    assert "<progress" in first
    assert "training" in first
    assert last == ""


def test_many_runs_in_a_notebook_have_a_bar_each(notebook: Notebook) -> None:
    state = SimpleNamespace(
        label="<fl>",
        seed=1,
        phase="training",
        over=False,
        share=0.25,
        seconds=1.0,
        epochs=2.0,
        quality=Quality("accuracy", 0.5, 0.5),
        error=None,
    )
    with runs_view("title", None) as view:
        view.show([state])
    first, last = notebook.shown
    assert '&lt;fl&gt; (seed 1) <progress value="0.2500">' in first
    assert "2.0 epochs, 1.0 s, 50.0 %" in first
    assert "0 of 1 runs" in first
    assert last == ""
