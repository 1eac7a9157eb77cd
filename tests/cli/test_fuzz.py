from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedoptima.methods.registry import COMPARED
from tests.cli.conftest import Call
from tests.fuzzing.mutants import planted

BUG = "samples are counted twice"


def test_clean_scripts_are_summed_up_in_a_table(call: Call) -> None:
    seeds = 2 * len(COMPARED)
    answer = call("fuzz", "--seeds", seeds)
    assert answer.code == 0, answer.out
    assert f"{seeds} scripts with" in answer.words
    assert "every law held" in answer.words
    assert "half-open" in answer.words
    assert all(f"{name} 2" in answer.words for name in COMPARED)


def test_a_broken_law_ends_with_its_seed_and_how_to_see_it(call: Call) -> None:
    with planted(BUG):
        answer = call("fuzz", "--seeds", "30", "--first", "100", "--method", "fedasync")
    assert answer.code == 1
    assert "breaks the law of counters" in answer.words
    assert "fedoptima fuzz --seed 100 --explain --method fedasync" in answer.words
    assert re.search(r"and \d+ more", answer.words)


def test_a_failure_is_explained_as_a_timeline(call: Call) -> None:
    with planted(BUG):
        answer = call("fuzz", "--seed", "100", "--explain", "--method", "fedasync")
    assert answer.code == 1
    assert "0 of " in answer.words  # it needs no fault
    assert "to server/1: Join" in answer.words
    assert "broke the law of counters" in answer.words


def test_a_script_that_holds_can_be_told_too(call: Call) -> None:
    answer = call("fuzz", "--seed", "2", "--explain")
    assert answer.code == 0
    assert "the end:" in answer.words
    assert answer.words.endswith("every law held")


def test_figures_as_json(call: Call) -> None:
    figures = json.loads(call("fuzz", "--seed", "5", "--json").out)
    assert figures["seeds"] == 1
    assert figures["failures"] == []
    assert {"tries", "survived", "worst_seconds"} == figures["faults"]["device killed"].keys()


def test_the_table_is_written_between_the_marks_of_a_file(call: Call, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- fuzz: begin -->\nearlier figures\n<!-- fuzz: end -->\nafter\n")
    for _ in range(2):
        assert call("fuzz", "--seeds", "10", "--record", page).code == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- fuzz: begin -->\n`fedoptima fuzz --seeds 10`, 20")
    assert text.endswith("<!-- fuzz: end -->\nafter\n")
    assert text.count("| connection cut |") == 1
    assert "earlier figures" not in text


def test_a_file_without_marks_is_refused(call: Call, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    answer = call("fuzz", "--seeds", "1", "--record", page)
    assert answer.code == 2
    assert "<!-- fuzz: begin -->" in answer.complaint


OWN = """
from fedoptima.methods.fedasync import fedasync


def mine(devices):
    return fedasync(devices)
"""


def test_a_method_of_ones_own_is_played_if_its_code_is_allowed(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_method.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ("fuzz", "--seeds", "10", "--method", "own_method:mine")
    refused = call(*arguments)
    assert refused.code == 2
    assert "--allow-module own_method" in refused.complaint
    answer = call(*arguments, "--allow-module", "own_method")
    assert answer.code == 0, answer.out
    assert "own_method:mine 10" in answer.words


def test_explain_needs_a_seed(call: Call) -> None:
    answer = call("fuzz", "--explain")
    assert answer.code == 2
    assert "--seed" in answer.complaint
