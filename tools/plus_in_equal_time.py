"""FedOptima+ against FedOptima in the same virtual time, from the runs that are recorded.

    fedoptima reproduce plus-image accuracy-image --workloads a_image --device cuda --out DIR
    python -m tools.plus_in_equal_time [--merge DIR] [--target 0.8276]

Both train with schedules of several lengths (the figures plus-image and, for FedOptima alone,
accuracy-image); times are those of the length that is fastest to an accuracy, means over seeds.
Exits with 1 if a bound is missed or a run is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from fedoptima.methods.fedoptima_plus import NAME as PLUS
from fedoptima.reproduction.catalogue import read_catalogue
from fedoptima.reproduction.planned import Choice, runs_of
from fedoptima.reproduction.records import Record, read_records
from tools.cells.table import time_to
from tools.records import ROOT

WORKLOAD = "a_image"
FIGURES = ("plus-image", "accuracy-image")
PLAIN = "fedoptima"
# How much of FedOptima's time to the target and to its own best; points more in the same time, for
# each length; the least share of time that both sides are busy; bytes, of FedOptima's.
TO_TARGET, TO_BEST, MORE, BUSY, BYTES = 0.6, 0.8, (1.5, 0.7), 0.95, 0.5

Group = list[Record]  # the seeds of one length
Line = tuple[str, float | None, str, bool]  # what, ours, the bound, and whether it holds


def lengths(method: str, records: Iterable[Record], seeds: int) -> list[Group]:
    """The runs of a method by length, the shortest first; only of those with all seeds."""
    groups: dict[float, Group] = {}
    for record in records:
        if record.method == method:
            groups.setdefault(round(record.figures["seconds"] or 0.0, -1), []).append(record)
    return [group for _, group in sorted(groups.items()) if len(group) == seeds]


def best(group: Group) -> float:
    return fmean(max(a or 0.0 for _, _, a in record.curve) for record in group)


def fastest_to(groups: Iterable[Group], target: float) -> float | None:
    """Seconds, of the length that is fastest; None: none has it with every seed."""
    found = []
    for group in groups:
        times = [time_to([(s, a) for s, _, a in record.curve], target) for record in group]
        reached = [seconds for seconds in times if seconds is not None]
        if len(reached) == len(times):
            found.append(fmean(reached))
    return min(found, default=None)


def compare(plain: list[Group], plus: list[Group], target: float) -> list[Line]:
    lines: list[Line] = []
    for bound, accuracy in ((TO_TARGET, target), (TO_BEST, max(map(best, plain), default=1.0))):
        ours, theirs = fastest_to(plus, accuracy), fastest_to(plain, accuracy)
        if theirs is None:  # a mean may lie above what the worst seed reaches
            theirs = plain[-1][0].figures["seconds"] if plain else None
        ratio = ours / theirs if ours and theirs else None
        what = f"time to {accuracy:.2%}, of FedOptima's"
        lines.append((what, ratio, f"at most {bound}", ratio is not None and ratio <= bound))
    for bound, one, other in zip(MORE, plain, plus, strict=False):
        seconds = one[0].figures["seconds"] or 0.0
        more = 100 * (best(other) - best(one))
        lines.append((f"points more in {seconds:.0f} s", more, f"at least {bound}", more >= bound))
        for side in ("server_idle_share", "device_idle_1_share"):
            busy = 1 - fmean(record.figures[side] or 0.0 for record in other)
            told = f"{side.partition('_')[0]} busy in {seconds:.0f} s"
            lines.append((told, busy, f"at least {BUSY}", busy >= BUSY))
    ours, theirs = _bytes(plus, target), _bytes(plain, target)
    ratio = ours / theirs if ours and theirs else None
    what = f"bytes up until {target:.2%}, of FedOptima's"
    lines.append((what, ratio, f"at most {BYTES}", ratio is not None and ratio <= BYTES))
    return lines


def _bytes(groups: Sequence[Group], target: float) -> float | None:
    seconds = fastest_to(groups, target)
    if seconds is None:
        return None
    return seconds * fmean(map(_bytes_each_second, groups[0]))


def _bytes_each_second(record: Record) -> float:
    """A record has bytes by epoch, and epochs of the two methods take different times."""
    epoch, epochs, seconds = (record.figures[name] for name in ("bytes_up", "epochs", "seconds"))
    return (epoch or 0.0) * (epochs or 0.0) / (seconds or 1.0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.plus_in_equal_time", description=__doc__)
    parser.add_argument("--merge", type=Path, action="append", default=[], metavar="DIR")
    parser.add_argument("--target", type=float, default=0.8276, help="accuracy")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(arguments)
    catalogue, choice = read_catalogue(), Choice(seeds=given.seeds)
    wanted = {
        run.id
        for name in FIGURES
        for run in runs_of(catalogue, catalogue.figures[name], choice)
        if run.workload == WORKLOAD and run.case.method in (PLAIN, PLUS)
    }
    known: dict[str, Record] = {}
    for folder in (ROOT / "results" / "paper", *given.merge):
        known |= read_records(folder)
    found = [known[run] for run in sorted(wanted) if run in known]
    plain, plus = (lengths(method, found, given.seeds) for method in (PLAIN, PLUS))
    lines = compare(plain, plus, given.target)
    for what, ours, bound, _ in lines:
        print(f"{what}: {'-' if ours is None else f'{ours:.3f}'} ({bound})")
    if missing := len(wanted) - len(found):
        print(f"{missing} of {len(wanted)} runs are missing", file=sys.stderr)
    return 0 if not missing and all(held for *_, held in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
