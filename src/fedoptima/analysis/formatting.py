"""Numbers as people read them: the same in the terminal, in reports and in a page's texts.

The page formats its figures itself, by the same rules, in `dashboard/static/words.js`.
"""

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


def roughly(seconds: float) -> str:
    """For what changes while one reads: ``12 s``, ``45 min``, ``30 h``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{minutes / 60:,.0f} h"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def busy(fresh: float | None, reused: float | None) -> str:
    """Of a node's time: with what it does anyway, and with batches that are used again."""
    return f"{percent(fresh)} and {percent(reused)} reused" if reused else percent(fresh)


def accuracies(last: float | None, best: float | None) -> str:
    return "-" if last is None else f"{percent(last)} (best {percent(best)})"


def megabytes(nbytes: float) -> str:
    return f"{brief(nbytes / 1e6)} MB"


def mebibytes(nbytes: float) -> str:
    return f"{brief(nbytes / 2**20)} MiB"


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
