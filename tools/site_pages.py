"""A hook of mkdocs: pages of the site that are not in docs/, and links between all of them.

Documents are written for a reader of the repository, so their links are paths there. The site has
docs/ at its root, and brings in what it shows from elsewhere: the results, the change log, the
notebooks as pages. What a document links to besides (a source file) is copied into the site.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
FROM_ELSEWHERE = ("CONTRIBUTING.md", "CHANGELOG.md", "results/**/*.md", "examples/*.ipynb")

_FENCED = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)(#[^)\s]*)?(?=\))")
_SCHEME = re.compile(r"[a-z]+:")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what the site shows from outside docs/, and what its pages link to there."""
    for pattern in FROM_ELSEWHERE:
        for path in sorted(ROOT.glob(pattern)):
            where = path.relative_to(ROOT).as_posix()
            if path.suffix == ".ipynb":
                text = as_markdown(path.read_text(encoding="utf-8"))
                files.append(File.generated(config, _in_site(where), content=text))
            else:
                files.append(File.generated(config, where, abs_src_path=str(path)))
    for file in list(files.documentation_pages()):
        for target in _targets(file.content_string, _in_repository(file.src_uri)):
            if files.get_file_from_path(_in_site(target)) is None and (ROOT / target).is_file():
                files.append(
                    File.generated(config, _in_site(target), abs_src_path=str(ROOT / target))
                )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn a link's path in the repository into its path in the site."""
    here = page.file.src_uri
    return _rewrite(
        markdown,
        _in_repository(here),
        lambda target: posixpath.relpath(_in_site(target), posixpath.dirname(here)),
    )


def as_markdown(notebook: str) -> str:
    """A notebook's text and code, without its outputs."""
    cells = json.loads(notebook)["cells"]
    return "\n\n".join(
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell in cells
        if (text := "".join(cell["source"]).strip())
    )


def _in_repository(site: str) -> str:
    """Where a page of the site is in the repository."""
    return site if not (ROOT / "docs" / site).exists() else f"docs/{site}"


def _in_site(repository: str) -> str:
    path = repository.removeprefix("docs/")
    return path.removesuffix(".ipynb") + ".md" if path.endswith(".ipynb") else path


def _targets(markdown: str, document: str) -> Iterator[str]:
    found: list[str] = []
    _rewrite(markdown, document, lambda target: found.append(target) or target)
    yield from found


def _rewrite(markdown: str, document: str, change: Callable[[str], str]) -> str:
    """The text with ``change`` applied to the repository path of every relative link."""

    def link(match: re.Match[str]) -> str:
        if _SCHEME.match(match[1]):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(document), match[1]))
        return change(target) + (match[2] or "")

    parts = _FENCED.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)
