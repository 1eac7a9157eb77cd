"""Every relative link leads to a file, every anchor to a heading, every named test is there."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.documents.blocks import ROOT, documents

DOCUMENTS = [*documents(), ROOT / "CHANGELOG.md", *sorted((ROOT / "results").rglob("*.md"))]

_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TEST = re.compile(r"`(tests/[\w/]*(?:\.py)?)`(?:: `(test_\w+)`)?")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(document: Path) -> set[str]:
    """Of the headings, as GitHub and the site name them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in _HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in plain}


def broken(document: Path, link: str) -> bool:
    path, _, anchor = unquote(link).partition("#")
    target = (document.parent / path).resolve() if path else document
    return not target.exists() or bool(
        anchor and target.suffix == ".md" and anchor not in anchors(target)
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_of_a_document_leads_somewhere(document: Path) -> None:
    text = _CODE.sub("", document.read_text(encoding="utf-8"))
    links = [link for link in _LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if broken(document, link)] == []


def nowhere(text: str) -> list[str]:
    """Tests, and files and folders of tests, that a document names and nobody finds."""
    return [
        found[0]
        for found in _TEST.finditer(text)
        if not (ROOT / found[1]).exists()
        or (found[2] and f"def {found[2]}(" not in (ROOT / found[1]).read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(
    "document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_every_test_that_a_document_names_is_where_it_says(document: Path) -> None:
    assert nowhere(document.read_text(encoding="utf-8")) == []


def test_a_test_that_has_moved_is_found() -> None:
    here = "tests/documents/test_links.py"
    assert nowhere(f"`tests/nowhere.py`, `{here}`: `test_that_never_was`") == [
        "`tests/nowhere.py`",
        f"`{here}`: `test_that_never_was`",
    ]
    assert nowhere(f"`tests/documents`, `{here}`: `test_a_test_that_has_moved_is_found`") == []


def test_a_link_to_nowhere_is_found() -> None:
    readme = ROOT / "README.md"
    assert broken(readme, "docs/nowhere.md")
    assert broken(readme, "docs/deployment.md#no-such-heading")
    assert not broken(readme, "docs/deployment.md#when-something-fails")
