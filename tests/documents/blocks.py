"""The code blocks of the documents, and the commands in them.

A block is executed as it is written, unless an HTML comment before it says why not:

    <!-- not executed: REASON -->                          the whole block
    <!-- not executed where it says "TEXT": REASON -->     its lines with TEXT; may be repeated
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHELL = ("sh", "bash", "console")

_FENCE = re.compile(r"^( *)```([\w-]*)")
_SKIPPED = re.compile(r'<!-- not executed(?: where it says "(?P<text>[^"]+)")?: (?P<reason>.+) -->')


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language, its lines, and the lines not to execute."""

    document: Path
    line: int
    language: str
    code: str
    skipped: tuple[str, ...] = ()  # lines that contain one of these; "" is all of them

    @property
    def place(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Those of a shell block, one each, with continued lines joined and comments left out."""
        joined = re.sub(r"\\\n\s*", " ", self.code)
        return [
            command
            for line in joined.splitlines()
            if not any(text in line for text in self.skipped)
            for part in _without_comment(line).split(";")
            if (command := part.strip())
        ]

    @property
    def all_commands(self) -> list[str]:
        """Those too that are not executed."""
        return Block(self.document, self.line, self.language, self.code).commands


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(document: Path) -> Iterator[Block]:
    skipped: list[str] = []
    opened: tuple[int, str, str] | None = None
    code: list[str] = []
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is not None:
            if fence and not fence[2]:
                yield Block(document, opened[0], opened[1], "\n".join(code), tuple(skipped))
                opened, skipped, code = None, [], []
            else:
                code.append(line.removeprefix(opened[2]))
        elif fence:
            opened = (number, fence[2], fence[1])
        elif comment := _SKIPPED.search(line):
            skipped.append(comment["text"] or "")
        elif line.strip():
            skipped = []


def _without_comment(line: str) -> str:
    found = re.search(r"(^|\s)#", line)
    return line[: found.start()] if found else line
