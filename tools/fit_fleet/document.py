"""The tables of docs/calibration.md, from the stored results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import exp
from typing import Any

from fedoptima.paper_numbers import Measure, number
from tools.fit_fleet.comparison import IDLE, WORKLOADS
from tools.records import ROOT, Record

DOCUMENT = ROOT / "docs" / "calibration.md"
_BEGIN = "<!-- made by python -m tools.fit_fleet: {} -->"
_END = "<!-- end -->"


def renewed(text: str, stored: Mapping[str, Record]) -> str:
    """The document with new tables in the places that are marked for them."""
    for testbed, record in stored.items():
        for name, table in (
            ("parameters", _parameters(record)),
            ("numbers", numbers(record)),
            ("speeds", _speeds(testbed, record)),
        ):
            begin = _BEGIN.format(f"{testbed}, {name}")
            place = re.compile(f"({re.escape(begin)}\n).*?({_END})", re.DOTALL)
            body = "\n" + "\n".join(table) + "\n\n"
            text, places = place.subn(lambda found, body=body: found[1] + body + found[2], text)
            if places != 1:
                raise SystemExit(f"{DOCUMENT.name}: there are {places} places marked {begin}")
    return text


def _parameters(record: Record) -> Iterator[str]:
    yield "| times the guessed | fitted | cells of the grid nearly as good |"
    yield "|---|---:|---:|"
    for each in record["parameters"]:
        low, high = each["range"]
        yield f"| {each['name']} | {each['fitted']:.3g} | {low:.3g} to {high:.3g} |"
    yield ""
    yield (
        f"Sum of squared errors {record['error']:.1f}, with the guessed speeds "
        f"{record['error_guessed']:.1f}; {record['evaluations']} evaluations. "
        f"`{record['command']}`, {record['date']}, fedoptima {record['fedoptima']}."
    )


def numbers(record: Record) -> Iterator[str]:
    yield "| the paper's number | paper | guessed | fitted | off by | use |"
    yield "|---|---:|---:|---:|---:|---|"
    for each in record["numbers"]:
        said = number(each["key"])
        label = f"`{each['key']}`, {said.place}"
        use = f"{each['use']}: {each['why']}" if each["why"] else each["use"]
        if each["use"] == "not comparable":
            yield f"| {label} | {_value(said.measure, each['paper'])} | | | | {use} |"
            continue
        bound = f"{said.bound} " if said.bound else ""
        values = [_value(said.measure, each[name]) for name in ("paper", "guessed", "fitted")]
        off = f"x {exp(each['residual_fitted']):.2f}"
        yield f"| {label} | {bound}{values[0]} | {values[1]} | {values[2]} | {off} | {use} |"


def _value(measure: Measure, value: float | None) -> str:
    if value is None:
        return "never"
    if measure is Measure.COMMUNICATION_CHANGE:
        return f"{100 * value:+.0f} %"
    if measure in (Measure.ACCURACY, Measure.ACCURACY_GAIN, *IDLE):
        return f"{100 * value:.3g} %"
    if measure is Measure.HOURS:
        return f"{value:.2f} h"
    return f"{value:.3g}"


def _speeds(testbed: str, record: Record) -> Iterator[str]:
    """Useful samples per second, as a multiple of FedOptima's."""
    methods = list(dict.fromkeys(each["method"] for each in record["figures"]))
    yield f"| workload, speeds | {' | '.join(methods)} | server busy, devices busy |"
    yield f"|---|{'---:|' * len(methods)}---:|"
    for workload in WORKLOADS[testbed]:
        for fleet in ("guessed", "fitted"):
            of: dict[str, Any] = {
                each["method"]: each
                for each in record["figures"]
                if (each["workload"], each["fleet"]) == (workload, fleet)
            }
            own = of["fedoptima"]
            best = max(methods, key=lambda method: of[method]["samples_per_second"])
            cells = [f"{own['samples_per_second']:.0f}/s" if best else ""]
            cells += [
                f"{of[m]['samples_per_second'] / own['samples_per_second']:.2f}"
                for m in methods
                if m != "fedoptima"
            ]
            marked = [
                f"**{cell}**" if m == best else cell for m, cell in zip(methods, cells, strict=True)
            ]
            busy = f"{100 * own['server_busy']:.0f} %, {100 * own['device_busy']:.0f} %"
            yield f"| {workload}, {fleet} | {' | '.join(marked)} | {busy} |"
