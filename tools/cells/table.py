"""Who is first at a target in each cell, from the runs that are finished."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence

from fedoptima.comparison.regions import number
from fedoptima.methods.fedoptima_plus import NAME as PLUS
from fedoptima.reproduction.records import Record, Recorded
from tools.cells.choice import Entry, Plain


def curve_of(entry: Entry, record: Record) -> list[tuple[float, float | None]]:
    """Seconds in the cell, and accuracy."""
    if entry.seconds_per_epoch is None:
        return [(seconds, accuracy) for seconds, _, accuracy in record.curve]
    return [(epochs * entry.seconds_per_epoch, accuracy) for _, epochs, accuracy in record.curve]


def time_to(curve: Sequence[tuple[float, float | None]], target: float) -> float | None:
    return next((s for s, accuracy in curve if accuracy is not None and accuracy >= target), None)


def rows_of(found: Sequence[Entry], records: Recorded, targets: Sequence[float]) -> Iterator[Plain]:
    """For each cell and method: its best length for each target, the mean over seeds. A target
    that a seed did not reach counts as not reached."""
    for conditions, label in dict.fromkeys((one.conditions, one.label) for one in found):
        own = [e for e in found if (e.conditions, e.label) == (conditions, label)]
        row: Plain = {"devices": number(conditions.devices), "mbps": conditions.mbps}
        row |= {"method": label, "runs": 0, "best accuracy": None, "seconds": {}}
        for length in dict.fromkeys(entry.epochs for entry in own):
            there = [(e, records.get(e.run.id)) for e in own if e.epochs == length]
            curves = [curve_of(e, record) for e, record in there if record is not None]
            if not curves:
                continue
            row["runs"] += len(curves)
            best = statistics.fmean(max(a or 0.0 for _, a in curve) for curve in curves)
            row["best accuracy"] = round(max(best, row["best accuracy"] or 0.0), 4)
            for target in targets:
                times = [time_to(curve, target) for curve in curves]
                reached = [seconds for seconds in times if seconds is not None]
                if len(reached) == len(times):
                    mean = statistics.fmean(reached)
                    before = row["seconds"].get(f"{target:g}")
                    if before is None or mean < before["seconds"]:
                        told = {"seconds": round(mean, 1), "epochs": length}
                        row["seconds"][f"{target:g}"] = told
        yield row


def verdicts(rows: Sequence[Plain], targets: Sequence[float]) -> list[Plain]:
    """For each cell: FedOptima+'s time over the fastest baseline's, by target; None: not reached
    by FedOptima+, or nothing to compare with."""
    found = []
    for place in dict.fromkeys((row["devices"], row["mbps"]) for row in rows):
        own = [row for row in rows if (row["devices"], row["mbps"]) == place]
        ratios: dict[str, float | None] = {}
        for target in (f"{target:g}" for target in targets):
            times = {
                r["method"]: r["seconds"][target]["seconds"] for r in own if target in r["seconds"]
            }
            others = [seconds for method, seconds in times.items() if method != PLUS]
            if PLUS in times:
                ratios[target] = round(times[PLUS] / min(others), 3) if others else 0.0
            else:
                ratios[target] = None
        found.append({"devices": place[0], "mbps": place[1], "ratios": ratios})
    return found


def markdown(record: Plain, targets: Sequence[float]) -> str:
    names = [f"{target:g}" for target in targets]
    columns = " | ".join(f"s to {100 * target:g} %" for target in targets)
    text = [f"# FedOptima+ against the two strongest baselines: {record['recipe']}", ""]
    text += [f"| devices | Mbps | method | best accuracy | {columns} |"]
    text += [f"|---|---:|---|---:|{'---:|' * len(names)}"]
    for row in record["rows"]:
        times = [row["seconds"].get(name) for name in names]
        told = [f"{t['seconds']:.0f} ({t['epochs']:g} epochs)" if t else "-" for t in times]
        best = f"{row['best accuracy']:.2%}" if row["runs"] else "not run yet"
        place = f"x {row['devices']} | {row['mbps']:g} | {row['method']}"
        text.append(f"| {place} | {best} | {' | '.join(told)} |")
    text += ["", f"| cell | {' | '.join(f'{PLUS} over the best, {n}' for n in names)} |"]
    text += [f"|---|{'---:|' * len(names)}"]
    for cell in record["verdicts"]:
        told = [_ratio(cell["ratios"][name]) for name in names]
        text.append(f"| x {cell['devices']}, {cell['mbps']:g} Mbps | {' | '.join(told)} |")
    about = [f"- {key}: {', '.join(f'{n:g}' for n in record[key])}" for key in ("seeds", "epochs")]
    text += ["", *about, *map(_origin, record["made"]), ""]
    return "\n".join(text)


def _origin(made: Plain) -> str:
    by = f"{made['date']}, {made['commit']}, {made['versions']}; {made['machine']}"
    return f"- runs: {made['runs']} by `{made['command']}` ({by})"


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return "not reached"
    return f"{ratio:.2f}" if ratio else "no baseline reached it"


def as_json(record: Plain) -> str:
    """A line for each key, and for each row."""
    lines = []
    for key, value in record.items():
        rows = isinstance(value, list) and value and isinstance(value[0], dict)
        body = ",\n  ".join(map(json.dumps, value)) if rows else ""
        lines.append(f" {json.dumps(key)}: " + (f"[\n  {body}\n ]" if rows else json.dumps(value)))
    return "{\n" + ",\n".join(lines) + "\n}\n"
