from __future__ import annotations

import pytest

from tools.model_zoo import ENTRIES, HEAD, PAGE, main, renewed


def test_rows_are_replaced_by_name_and_the_rest_of_the_page_stays() -> None:
    page = "\n".join(["before", "", *HEAD, "| LSTM | 1 |", "", "after", ""])
    first, second = (next(name for name in ENTRIES if word in name) for word in ("BERT", "LSTM"))
    made = renewed(page, [f"| {second} | 2 |", f"| {first} | 3 |"])
    rows = [f"| {first} | 3 |", f"| {second} | 2 |"]
    assert made == "\n".join(["before", "", *HEAD, *rows, "", "after", ""])


def test_the_table_in_the_docs_is_one_that_this_command_writes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert sum(f"| {name} |" in page for name in ENTRIES) >= 10
    assert renewed(page, []) == page


def test_one_is_cut_compared_and_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["LSTM", "--samples", "32"]) == 0
    assert "| `lstm` | 64 |" in capsys.readouterr().out
