"""Every row of "When something fails" is a test of the same name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "deployment.md"


def rows() -> list[str]:
    """What happens, in each of them."""
    section = DOCUMENT.read_text().partition("## When something fails")[2]
    table = section.partition("|---|---|")[2].partition("\n\n")[0]
    return [line.split("|")[1].strip() for line in table.strip().splitlines()]


def name_of(row: str) -> str:
    """Without what is in parentheses or after a colon."""
    text = re.sub(r"\([^)]*\)", "", row).partition(":")[0].lower().replace("'", "")
    return "test_" + "_".join(re.findall(r"[a-z0-9]+", text))


def test_every_row_of_the_table_of_failures_has_a_test_of_its_name() -> None:
    found = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert len(rows()) >= 10
    assert [name_of(row) for row in rows() if name_of(row) not in found] == []
