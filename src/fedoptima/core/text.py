"""Text that came from another machine, made fit for a log or a terminal: one line, and not long."""

from __future__ import annotations

from typing import Final

MOST_TEXT: Final = 4_000  # characters of an error or a reason in a message or a record
MOST_SHOWN: Final = 300  # of it in a log, on a terminal or on a page


def cut(text: str, most: int = MOST_SHOWN) -> str:
    """At most ``most`` characters, and how many there were if that is not all."""
    if len(text) <= most:
        return text
    said = f"... ({len(text):,} characters)"
    return text[: max(0, most - len(said))] + said


def printable(text: str, most: int = MOST_SHOWN) -> str:
    """Line breaks, control characters and all else that is not seen as what it is, escaped."""
    text = cut(text, most)
    return text if text.isprintable() else "".join(map(_escaped, text))


def quoted(text: str, most: int = MOST_SHOWN) -> str:
    """A peer's own words inside a sentence of ours: in quotation marks, so both ends are seen."""
    return repr(cut(text, most))


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


def short_name(name: str) -> str:
    """Of a method that a recipe calls "package.module:function", the function."""
    return name.rpartition(":")[2] or name
