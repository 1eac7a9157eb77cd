"""The documents that tie the paper to the code name code that exists, and leave nothing out."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "fedoptima"
PAPER_MAP = ROOT / "docs" / "paper-map.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))

REFERENCE = re.compile(r"`([\w/.-]+\.(?:py|toml))(?::([\w.]+))?`")
OUTSIDE_THE_PACKAGE = ("recipes/", "tests/", "benchmarks/")
WITHOUT_CODE = ("not yet", "nothing to build")

# How much of each kind the paper has.
ALGORITHM_LINES = {1: 19, 2: 9, 3: 9, 4: 29}
NUMBERED = {"Eq.": 14, "Observation": 6, "Table": 4, "Fig.": 15}


def defined_names(source: str) -> set[str]:
    """Names a module defines: ``f``, ``CONSTANT``, ``Class``, ``Class.method``, ``Class.field``."""

    def names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name
            elif isinstance(node, ast.ClassDef):
                yield prefix + node.name
                yield from names(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield prefix + node.target.id
            elif isinstance(node, ast.Assign):
                yield from (prefix + t.id for t in node.targets if isinstance(t, ast.Name))

    return set(names(ast.parse(source).body, ""))


def has_key(source: str, dotted: str) -> bool:
    """Does a TOML text have this key?"""
    value: object = tomllib.loads(source)
    for key in dotted.split("."):
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def missing(path: str, symbol: str) -> str | None:
    """What is wrong with a reference, if anything is."""
    file = (ROOT if path.startswith(OUTSIDE_THE_PACKAGE) else PACKAGE) / path
    if not file.is_file():
        return f"{path}: no such file"
    if not symbol:
        return None
    source = file.read_text(encoding="utf-8")
    found = has_key(source, symbol) if file.suffix == ".toml" else symbol in defined_names(source)
    return None if found else f"{path}: no {symbol}"


def references(document: str) -> list[tuple[str, str]]:
    return [(m[1], m[2] or "") for m in REFERENCE.finditer(document)]


def rows() -> list[tuple[str, str]]:
    """The map's rows: (place in the paper, where it is in the code)."""
    found = []
    for line in PAPER_MAP.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and not set(line) <= set("|-: ") and cells[0] != "paper":
            found.append((cells[0], cells[-1]))
    return found


def places(pattern: str) -> set[int]:
    """The numbers, ranges included, that follow ``pattern`` in the first cells of the map."""
    numbers: set[int] = set()
    for place, _ in rows():
        for match in re.finditer(pattern + r" (\d+)(?:-(\d+))?", place):
            numbers |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return numbers


@pytest.mark.parametrize(
    "document", [PAPER_MAP, ARCHITECTURE, *DECISIONS], ids=lambda path: path.stem
)
def test_everything_a_document_names_exists(document: Path) -> None:
    found = references(document.read_text(encoding="utf-8"))
    assert found, "names no code at all"
    problems = [problem for path, symbol in found if (problem := missing(path, symbol))]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("algorithm", ALGORITHM_LINES)
def test_every_line_of_an_algorithm_is_mapped(algorithm: int) -> None:
    lines = places(rf"Alg\. {algorithm}, l\.")
    assert lines == set(range(1, ALGORITHM_LINES[algorithm] + 1))


@pytest.mark.parametrize("kind", NUMBERED)
def test_every_numbered_thing_of_the_paper_is_mapped(kind: str) -> None:
    assert places(re.escape(kind)) == set(range(1, NUMBERED[kind] + 1))


def test_a_row_names_code_or_says_that_there_is_none() -> None:
    silent = [
        place
        for place, where in rows()
        if not references(where) and not any(words in where for words in WITHOUT_CODE)
    ]
    assert not silent


def test_every_decision_is_numbered_in_turn_and_listed() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    assert [path.name for path in DECISIONS if f"({path.name})" not in index] == []


def test_a_missing_file_symbol_or_key_is_caught() -> None:
    assert missing("core/nowhere.py", "") == "core/nowhere.py: no such file"
    assert missing("core/errors.py", "NoError") == "core/errors.py: no NoError"
    assert missing("core/errors.py", "ConfigError") is None
    assert defined_names("class A:\n    x: int\n    def f(self): ...\nB = 1") == {
        "A",
        "A.x",
        "A.f",
        "B",
    }
    assert has_key("[a]\nb = 1", "a.b")
    assert not has_key("[a]\nb = 1", "a.c")
