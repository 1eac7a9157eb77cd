from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.text import cut, printable, quoted

EVIL = "\x1b[2J\x1b[31mred\n12:00:00 fast is dropped\r\x07\x9b\u2028\u202e\ud800"


@given(st.text(st.characters()), st.integers(40, 400))
def test_whatever_was_said_is_shown_on_one_line_and_not_long(text: str, most: int) -> None:
    for shown in (printable(text, most), quoted(text, most)):
        assert shown.isprintable()
        assert len(shown) <= 10 * most + 2  # an escape has up to ten characters
    assert len(cut(text, most)) <= most


@given(st.text(st.characters(exclude_categories=["C", "Z"]), max_size=300))
def test_what_can_be_shown_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == cut(text) == text


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert printable(EVIL) == (
        r"\x1b[2J\x1b[31mred\n12:00:00 fast is dropped\r\x07\x9b\u2028\u202e\ud800"
    )


def test_a_peers_words_have_a_beginning_and_an_end() -> None:
    assert quoted("out of memory; fast: device failed") == "'out of memory; fast: device failed'"
    assert quoted(EVIL) == repr(EVIL)


def test_what_is_cut_says_how_long_it_was() -> None:
    assert cut("x" * 1000).endswith("x... (1,000 characters)")
    assert len(cut("x" * 1000)) == 300
