"""Numbers as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """``1 h 02 min 03 s``; tenths below a minute."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min {rest:02d} s"


def about(seconds: float) -> str:
    """In a word: ``12 s``, ``45 min``, ``30 h``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{minutes / 60:,.0f} h"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


def mebibytes(nbytes: float) -> str:
    return f"{nbytes / 2**20:,.2f} MiB"


def brief(number: float) -> str:
    """Three figures that count, whatever the size."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def accuracies(last: float | None, best: float | None) -> str:
    if last is None:
        return "-"
    return f"{percent(last)} (best {percent(best)})"


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
