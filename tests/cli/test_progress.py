"""A terminal sees a live display; anything else gets plain lines, never a silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedoptima.config.load import load_recipe
from fedoptima.display.progress import LineView, LiveView, SilentView, view_of
from tests.cli.conftest import Call


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Output counts as a terminal's, whatever it really is."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return monkeypatch


def test_a_terminal_sees_the_run_go_on(
    call: Call, recipe: Path, terminal: pytest.MonkeyPatch
) -> None:
    answer = call("simulate", recipe, "--json")
    assert answer.code == 0
    for word in ("training", "of 1 epochs", "virtual time", "busy: server", "events/s"):
        assert word in answer.err
    assert answer.out.startswith("{")


def test_a_run_without_a_budget_has_a_bar_without_a_length(
    call: Call, recipe: Path, terminal: pytest.MonkeyPatch
) -> None:
    answer = call("simulate", recipe, "--json", "--set", "stop={target_accuracy=0.05}")
    assert answer.code == 0
    assert "of 1 epochs" not in answer.err
    assert "epochs" in answer.err


def test_a_dumb_terminal_gets_lines(recipe: Path, terminal: pytest.MonkeyPatch) -> None:
    assert isinstance(view_of(load_recipe(recipe), quiet=False), LiveView)
    terminal.setenv("TERM", "dumb")
    assert isinstance(view_of(load_recipe(recipe), quiet=False), LineView)
    assert type(view_of(load_recipe(recipe), quiet=True)) is SilentView


def test_reading_is_announced_once(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LineView(load_recipe(recipe)) as view:
        for done in range(4):
            view.reading("decoding train", done, 3)
        view.reading("reading test", 1, 1)
    assert capsys.readouterr().err == "decoding train\nreading test\n"


def test_a_terminal_sees_how_much_is_read(
    recipe: Path, terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with LiveView(load_recipe(recipe)) as view:
        view.reading("cifar10 train", 50_000, 50_000)
    assert "50,000 of 50,000" in capsys.readouterr().err
