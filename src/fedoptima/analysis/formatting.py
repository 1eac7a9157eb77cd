"""Numbers as people read them, in sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence


def duration(seconds: float) -> str:
    """``1 h 02 min``, ``3 min 05 s``, ``12.3 s``, ``45 ms``."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min"


def percent(share: float | None) -> str:
    """Whole percents, tenths where they are few."""
    if share is None:
        return "-"
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"


def exact_percent(share: float | None) -> str:
    """Hundredths, where two figures are to be told apart."""
    return "-" if share is None else f"{100 * share:.2f} %"


def megabytes(nbytes: float) -> str:
    return f"{brief(nbytes / 1e6)} MB"


def brief(number: float) -> str:
    """Three figures that count, whatever the size."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """``a, b and c``; of a long row only the first, and how many more."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
