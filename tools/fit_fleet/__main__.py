"""Which speeds explain the paper's results best? Fits a testbed's fleet to its numbers.

    python -m tools.fit_fleet testbed_a
    python -m tools.fit_fleet testbed_b
    python -m tools.fit_fleet testbed_a --again    # the stored factors, newly compared
    python -m tools.fit_fleet                      # only the tables of docs/calibration.md

Dry runs of all methods on both workloads of the testbed, for each candidate. Writes
results/calibration/TESTBED.json, the preset TESTBED_fitted and the tables of docs/calibration.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from fedoptima.config.fleet import FleetConfig
from fedoptima.paper_numbers import NUMBERS, Measure, PaperNumber
from fedoptima.sim.fleet import presets
from tools.fit_fleet import fleets
from tools.fit_fleet.comparison import (
    EPOCHS,
    WORKLOADS,
    Measured,
    predicted,
    residual,
    terms,
    use_of,
)
from tools.fit_fleet.document import DOCUMENT, renewed
from tools.fit_fleet.figures import METHODS, figures, retention
from tools.fit_fleet.fitting import Fit, fit
from tools.records import ROOT, Record, origin, save

RESULTS = ROOT / "results" / "calibration"
GRID = {
    fleets.DEVICES: (1 / 8, 1 / 4, 1 / 2, 1, 2),
    fleets.SERVER: (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8),
}
NEAR = 6.0  # more error than the best fit has: two parameters at 95 %, were the weights deviations


# The search saves time: PiPar's own rule takes up to 50 parts; the results have it.
_SEARCH = {"pipar": {"micro_batches": 10}}


def measure(testbed: str, fleet: FleetConfig) -> Measured:
    return {workload: figures(workload, fleet) for workload in WORKLOADS[testbed]}


def fit_testbed(testbed: str, refinements: int) -> Fit:
    def errors(parameters: fleets.Parameters) -> list[float]:
        fleet = fleets.fitted(testbed, parameters)
        found = terms({w: figures(w, fleet, METHODS, _SEARCH) for w in WORKLOADS[testbed]})
        print(_said(parameters), f"{sum(term * term for term in found):.1f}", flush=True)
        return found

    found = fit(errors, GRID, refinements=refinements)
    return replace(found, parameters={name: _digits(v) for name, v in found.parameters.items()})


def _said(parameters: fleets.Parameters) -> str:
    return ", ".join(f"{name} x {value:.3g}" for name, value in parameters.items())


def record(testbed: str, found: Fit, arguments: Sequence[str]) -> Record:
    known = {"guessed": fleets.guessed(testbed), "fitted": fleets.fitted(testbed, found.parameters)}
    measured = {name: measure(testbed, fleet) for name, fleet in known.items()}
    ranges = found.ranges(NEAR)
    return {
        **origin("tools.fit_fleet", arguments, "cpu", None),
        "testbed": testbed,
        "parameters": [
            {"name": name, "fitted": value, "range": [_digits(end) for end in ranges[name]]}
            for name, value in found.parameters.items()
        ],
        "error_search": round(found.error, 3),
        "error": round(sum(t * t for t in terms(measured["fitted"])), 3),
        "error_guessed": round(sum(t * t for t in terms(measured["guessed"])), 3),
        "evaluations": found.evaluations,
        "epochs": [{"workload": w, **asdict(EPOCHS[w])} for w in WORKLOADS[testbed]],
        "numbers": [
            _compared(each, known, measured)
            for each in NUMBERS
            if each.workload in (*WORKLOADS[testbed], None)
        ],
        "figures": [
            {"fleet": name, "workload": workload, "method": method, **_rounded(asdict(of[method]))}
            for name, of_fleet in measured.items()
            for workload, of in of_fleet.items()
            for method in METHODS
        ],
        "grid": [[*map(_digits, cell.values()), _digits(error)] for cell, error in found.cells],
    }


def _compared(
    number: PaperNumber, known: dict[str, FleetConfig], measured: dict[str, Measured]
) -> Record:
    use, why = use_of(number)
    plain: Record = {"key": number.key, "paper": number.value, "use": use, "why": why}
    if use == "not comparable":
        return plain
    for name, fleet in known.items():
        if number.measure is Measure.RETENTION:
            assert number.workload is not None
            value = retention(number.workload, fleet, number.method)
        else:
            found = predicted(number, measured[name])
            assert found is not None
            value = found
        plain[name] = _digits(value)
        plain[f"residual_{name}"] = round(residual(number, value), 3)
    return plain


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: _digits(value) for name, value in values.items()}


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def comment(testbed: str) -> str:
    """What the preset's file says about itself."""
    letter = testbed[-1].upper()
    return f"""\
Testbed {letter} of the paper, with the speeds that explain its results best.

Made by `python -m tools.fit_fleet {testbed}`: the speeds of devices and server, each times one
factor, that come closest to the paper's hours, throughput ratios and idle times in dry runs.
Memory bandwidths, overheads, serialisation and the server's link are estimates. Residuals, and how
well the factors are determined: docs/calibration.md."""


def write(testbed: str, arguments: Sequence[str], *, again: bool, refinements: int) -> None:
    """``again``: with the stored factors, after something else has changed."""
    found = fit_of(stored()[testbed]) if again else fit_testbed(testbed, refinements)
    save(record(testbed, found, arguments), RESULTS / f"{testbed}.json", _said(found.parameters))
    preset = presets()[testbed].with_stem(f"{testbed}_fitted")
    text = fleets.as_toml(fleets.table(testbed, found.parameters), comment(testbed))
    preset.write_text(text, encoding="utf-8")


def fit_of(record: Record) -> Fit:
    """What was found before."""
    names = [each["name"] for each in record["parameters"]]
    cells = [(dict(zip(names, row, strict=False)), row[-1]) for row in record["grid"]]
    fitted = {each["name"]: each["fitted"] for each in record["parameters"]}
    return Fit(fitted, record["error_search"], tuple(cells), record["evaluations"])


def stored() -> dict[str, Record]:
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.glob("testbed_*.json"))
    }


def main(arguments: Sequence[str] | None = None) -> int:
    said = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="Fit a testbed's fleet to the paper's numbers.")
    parser.add_argument("testbed", nargs="?", choices=WORKLOADS, help="without: only the document")
    parser.add_argument("--again", action="store_true", help="no search: the stored factors")
    parser.add_argument("--refinements", type=int, default=30, help="evaluations after the grid")
    given = parser.parse_args(said)
    if given.testbed:
        write(given.testbed, said, again=given.again, refinements=given.refinements)
    DOCUMENT.write_text(renewed(DOCUMENT.read_text(encoding="utf-8"), stored()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
