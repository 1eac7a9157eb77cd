"""Tables of numbers: none loses a digit at the edge of a narrow console."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from fedoptima.display.console import plain_table, print_table


@pytest.mark.parametrize("width", [20, 40, 80, 90, 200])
def test_every_number_is_whole_whatever_the_width(width: int) -> None:
    table = plain_table("what is shown here", *(f"column {number}" for number in range(6)))
    numbers = [f"0.{number}12345678" for number in range(6)]
    table.add_row("a long name of a row", *numbers)
    written = StringIO()
    print_table(Console(file=written, width=width), table)
    text = written.getvalue()
    assert all(number in text for number in numbers)
    assert "column 5" in text
    longest = max(map(len, text.splitlines()))
    assert longest <= (width if width >= 90 else 98)


def test_a_name_is_folded_before_a_number_is_wide_of_the_edge() -> None:
    table = plain_table("", "seconds")
    table.add_row("the name of a row is long", "0.123")
    written = StringIO()
    print_table(Console(file=written, width=20), table)
    assert max(map(len, written.getvalue().splitlines())) <= 20
