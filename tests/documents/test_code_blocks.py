"""What the documents show is executed: Python as it stands, commands with quick settings."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedoptima.cli.app import app
from tests.documents.blocks import ROOT, SHELL, Block, blocks_of, documents
from tests.documents.commands import mistakes_in

# A command does what is written, with fewer epochs and less that is drawn.
QUICK = {
    "simulate": ["--set", "stop.epochs=1", "-q"],
    "compare": [
        "--set",
        "stop.epochs=1",
        "--dry",
        "--methods",
        "fedoptima,fl",
        "--jobs",
        "1",
        "-q",
    ],
    "sweep": ["--set", "stop.epochs=1", "--dry", "--jobs", "1", "-q"],
    "report": ["--no-advice"],
}
DEMO = "runs/demo_network-fedoptima"
OTHER_RUNS = ("runs/a", "runs/b", "runs/first")  # names of a run in documents
OTHER_RECIPES = ("recipe.toml", "my_recipe.toml")

BLOCKS = [block for document in documents() for block in blocks_of(document)]


def executable(document: Path) -> list[Block]:
    return [
        block
        for block in blocks_of(document)
        if "" not in block.skipped and block.language in ("python", *SHELL)
    ]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make demo` leaves, after one epoch."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    line = re.search(
        r"^demo:.*\n\t\$\(BIN\)/fedoptima (.+)$", (ROOT / "Makefile").read_text(), re.M
    )
    assert line is not None
    words = [*shlex.split(line[1]), "--set", "stop.epochs=1", "-q"]
    command = [sys.executable, "-m", "fedoptima", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def stage(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the documents take for granted."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for run in (DEMO, *OTHER_RUNS):
        shutil.copytree(demo / DEMO, tmp_path / run)
    for recipe in OTHER_RECIPES:
        shutil.copy(ROOT / "recipes" / "demo_network.toml", tmp_path / recipe)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def call(words: list[str]) -> None:
    resumed = "--resume" in words
    quick = [] if resumed else QUICK.get(words[0], [])
    if "--methods" in words and "--methods" in quick:
        at = quick.index("--methods")
        quick = quick[:at] + quick[at + 2 :]
    result = CliRunner().invoke(app, [*words, *quick])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, f"fedoptima {shlex.join(words)}\n{result.stdout}{result.stderr}"


def execute(block: Block, names: dict[str, object]) -> None:
    if block.language == "python":
        if named := re.match(r"# (\S+\.py)\n", block.code):  # what it is the content of
            Path(named[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(named[1]).write_text(block.code)
        exec(compile(block.code, block.place, "exec"), names)
        return
    for command in block.commands:
        program, *words = shlex.split(command)
        assert program == "fedoptima", f"{block.place}: {command}: say why it is not executed"
        call(words)


@pytest.mark.parametrize(
    "document",
    [document for document in documents() if executable(document)],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_the_code_of_a_document_runs(document: Path, stage: Path) -> None:
    names: dict[str, object] = {"__name__": "__document__"}
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        for block in executable(document):
            try:
                execute(block, names)
            except Exception as error:
                error.add_note(block.place)
                raise


def test_every_command_and_option_that_a_document_shows_exists() -> None:
    wrong = [
        f"{block.place}: {command}: {mistake}"
        for block in BLOCKS
        if block.language in SHELL
        for command in block.all_commands
        if re.match(r"(\S*/)?fedoptima ", command)
        for mistake in mistakes_in(command)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_command_that_does_not_exist_is_found() -> None:
    assert list(mistakes_in("fedoptima simulat x")) == ["no command 'simulat'"]
    assert list(mistakes_in("fedoptima simulate x --dray -q")) == ["no option --dray"]
    assert not list(mistakes_in("fedoptima certs device pi-1 --days 3"))


def test_a_test_that_a_reason_names_exists() -> None:
    """ "Not executed: tests/e2e does it" has to be true."""
    missing = [
        f"{document.relative_to(ROOT)}: {path}"
        for document in documents()
        for comment in re.findall(r"<!-- not executed.*?-->", document.read_text(encoding="utf-8"))
        for path in re.findall(r"tests/[\w/.]*\w", comment)
        if not (ROOT / path).exists()
    ]
    assert not missing, "\n".join(missing)


def test_what_shows_a_command_says_that_it_is_shell() -> None:
    """Otherwise nobody would execute it."""
    wrong = [
        block.place
        for block in BLOCKS
        if not block.language and re.search(r"^fedoptima ", block.code, re.MULTILINE)
    ]
    assert not wrong


def test_every_block_of_toml_is_toml() -> None:
    for block in BLOCKS:
        if block.language == "toml":
            try:
                tomllib.loads(block.code)
            except tomllib.TOMLDecodeError as error:
                error.add_note(block.place)
                raise
