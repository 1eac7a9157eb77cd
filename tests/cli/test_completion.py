from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedoptima.cli.app import app
from fedoptima.methods.registry import METHODS


def completed(*words: str) -> list[str]:
    environment = {
        "_FEDOPTIMA_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["fedoptima", *words]),
        "COMP_CWORD": str(len(words)),
    }
    return CliRunner().invoke(app, [], env=environment, prog_name="fedoptima").stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    script = CliRunner().invoke(app, ["--show-completion", shell], prog_name="fedoptima").stdout
    assert "_FEDOPTIMA_COMPLETE" in script
    assert "complete" in script


def test_commands_recipes_methods_and_runs_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("recipes/demo.toml", "recipes/other.toml", "own.toml", "runs/a/config.json"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert completed("sim") == ["simulate"]
    assert completed("simulate", "") == ["own.toml", "recipes/demo.toml", "recipes/other.toml"]
    assert completed("simulate", "recipes/d") == ["recipes/demo.toml"]
    assert set(completed("simulate", "own.toml", "--method", "fed")) == {
        name for name in METHODS if name.startswith("fed")
    }
    assert completed("simulate", "--resume", "r") == ["runs/a"]
    assert completed("pause", "runs/") == ["runs/a"]
