"""The documentation site is built without a warning, and asks nothing of the internet."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedoptima
from tests.documents.blocks import ROOT

# What a browser loads by itself; a link that a reader follows may lead anywhere.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc=["']?([^"'\s>]+)|"""
    r"""<link\b(?![^>]*rel=["']?canonical)[^>]*?\bhref=["']?([^"'\s>]+)"""
)
_IN_STYLES = re.compile(r"""url\(["']?(https?:[^"')]+)|@import\s+["'](https?:[^"']+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_has_what_it_should(site: Path) -> None:
    for page in ("index", "concepts", "faq", "api", "paper-map", "reliability", "results/index"):
        assert (site / f"{page}.html").is_file()
    reference = (site / "api.html").read_text(encoding="utf-8")
    assert "Train on a virtual clock and return the trained model" in reference


def test_the_reference_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: fedoptima\.(\w+)$", text, re.MULTILINE))
    assert set(fedoptima.__all__) - {"__version__"} <= listed


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert pages
    loaded = [
        f"{page.relative_to(site)}: {address}"
        for page in pages
        for match in _LOADED.finditer(page.read_text(encoding="utf-8"))
        if re.match(r"(https?:)?//", address := match[1] or match[2])
    ]
    styles = [
        f"{style.relative_to(site)}: {match[0]}"
        for style in sorted(site.rglob("*.css"))
        for match in _IN_STYLES.finditer(style.read_text(encoding="utf-8"))
    ]
    assert loaded + styles == []
