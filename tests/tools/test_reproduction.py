"""What the documents say about the reproduction is what is stored, and reasons can be checked."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedoptima.reproduction.document import Reproduction
from fedoptima.reproduction.verdicts import Verdict, rows
from tools.reproduction import DOCUMENT, README, RENEW, ROOT, document, readme, stored


@pytest.fixture(scope="module")
def results() -> Reproduction:
    """Takes seconds: not while tests are collected, which every worker does."""
    return stored()


def test_the_document_is_current(results: Reproduction) -> None:
    assert DOCUMENT.read_text() == document(results), f"docs/reproduction.md: run {RENEW}"


def test_the_page_says_why_the_fits_guesses_are_not_ours() -> None:
    _, _, fitted = DOCUMENT.read_text().partition("## The fitted fleets")
    assert "*Guessed* is not the same as *ours* above" in fitted
    assert "one set of settings for all methods" in fitted


def test_stored_results_name_no_folder_of_the_machine_they_were_made_on() -> None:
    stored_files = [path for path in (ROOT / "results").rglob("*") if path.is_file()]
    assert len(stored_files) > 50
    assert not [path for path in stored_files if b"/tmp/" in path.read_bytes()]


def test_the_table_in_readme_is_current(results: Reproduction) -> None:
    text = README.read_text()
    assert text == readme(results, text), f"README.md: run {RENEW}"
    assert re.search(
        r"<!-- table of results: .* -->\n.*\| \*?\*?[Ff]ed[Oo]ptima.*<!-- end -->", text, re.S
    )


def test_every_number_that_differs_has_a_reason(results: Reproduction) -> None:
    differ = [
        row for row in rows(results.results, results.reasons) if row.verdict is Verdict.DIFFERS
    ]
    without = [row.stated.key for row in differ if row.reason is None]
    assert not without, f"give reasons in results/paper/reasons.toml for {', '.join(without)}"


def test_every_reason_names_a_test_or_a_command_that_exists(results: Reproduction) -> None:
    for reason in results.reasons.values():
        assert shows_something(reason.shown_by), reason


def shows_something(name: str) -> bool:
    if name.startswith("tests/"):
        path, _, test = name.partition("::")
        return f"def {test}(" in (ROOT / path).read_text()
    program, *words = shlex.split(name)
    if program == "python":
        place = Path(ROOT, *words[1].split("."))
        found = place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
        return words[0] == "-m" and found
    return program == "fedoptima"


def test_a_reason_that_names_nothing_is_noticed() -> None:
    assert shows_something("tests/tools/test_reproduction.py::test_the_document_is_current")
    assert not shows_something("tests/tools/test_reproduction.py::test_nothing")
    assert shows_something("python -m tools.reproduction --write")
    assert not shows_something("python -m tools.nothing")
    assert not shows_something("believe it")
