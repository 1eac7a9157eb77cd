from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest

from fedoptima.paper_numbers import NUMBERS, Measure, PaperNumber, number
from fedoptima.sim.fleet import presets
from tools.fit_fleet import fleets
from tools.fit_fleet.__main__ import comment, stored
from tools.fit_fleet.communication import compared
from tools.fit_fleet.comparison import WORKLOADS, Measured, predicted, residual, terms, use_of
from tools.fit_fleet.document import DOCUMENT, renewed
from tools.fit_fleet.figures import figures
from tools.fit_fleet.fitting import fit

RENEW = "run python -m tools.fit_fleet"


def dry(parameters: fleets.Parameters, *others: str) -> Measured:
    fleet = fleets.fitted("testbed_a", parameters)
    return {"a_image": figures("a_image", fleet, ("fedoptima", "fl", *others))}


def test_the_fit_finds_the_speeds_with_which_the_numbers_were_made() -> None:
    true = {fleets.DEVICES: 0.4, fleets.SERVER: 0.06}  # the server is the bottleneck
    measured = dry(true)
    made = tuple(
        replace(each, value=predicted(each, measured))
        for each in (number("a_image.hours.fedoptima"), number("a_image.time.fl"))
    )

    found = fit(
        lambda parameters: terms(dry(parameters), made),
        {fleets.DEVICES: (0.1, 1.0), fleets.SERVER: (0.03, 0.3)},
        refinements=30,
    )

    assert found.error < 0.05
    assert found.parameters == pytest.approx(true, rel=0.1)


def test_the_search_leaves_the_grid_and_says_which_cells_are_nearly_as_good() -> None:
    def away(parameters: fleets.Parameters) -> list[float]:
        return [log(parameters["x"] / 3), 0.1 * log(parameters["y"] / 50)]

    found = fit(away, {"x": (1.0, 2.0, 4.0, 8.0), "y": (1.0, 10.0, 100.0)}, refinements=100)

    assert found.parameters == pytest.approx({"x": 3, "y": 50}, rel=0.05)
    assert len(found.cells) == 12
    ranges = found.ranges(0.25)
    assert ranges["x"] == pytest.approx((2, 4))
    assert ranges["y"] == pytest.approx((1, 100))  # it hardly matters


def test_a_residual_is_the_logarithm_of_predicted_over_reported() -> None:
    assert residual(number("a_image.time.fl"), 11.7 * 2) == pytest.approx(log(2))
    # An idle time that is down by 87.8 % instead of 93.9 % is twice as long.
    assert residual(number("idle.server"), 0.878) == pytest.approx(log(2))
    assert residual(number("b_image.communication.oafl"), 0.0) == pytest.approx(log(1 / 1.24))


def test_a_bound_that_is_kept_has_no_residual() -> None:
    others = number("a_image.throughput.others")
    assert others.bound == "at most"
    assert residual(others, 0.35) == 0
    assert residual(others, 1.4) == pytest.approx(log(2))


def test_epochs_that_barrier_methods_share_hardly_count_but_what_sets_them_apart_does() -> None:
    measured = dry({fleets.DEVICES: 1.0, fleets.SERVER: 1.0}, "splitfed")
    both = [number("a_image.time.fl"), number("a_image.time.splitfed")]
    exact = [replace(each, value=predicted(each, measured)) for each in both]

    def error(*factors: float) -> float:
        made = (
            replace(each, value=(each.value or 0) * factor)
            for each, factor in zip(exact, factors, strict=True)
        )
        return sum(term**2 for term in terms(measured, tuple(made)))

    assert error(1, 1) == pytest.approx(0)
    assert error(2, 2) == pytest.approx(1)
    assert error(1.25, 1 / 1.25) == pytest.approx(2)


def test_updates_that_are_refused_make_oafl_send_more_for_each_sample_merged() -> None:
    (row,) = compared(("testbed_b",), (16,), epochs=4.0)
    assert row["refused"] > 0.1
    assert row["per_trained_sample"] == pytest.approx(1, abs=0.01)
    assert row["per_merged_sample"] > 1.15


# ---- what is stored ------------------------------------------------------------------------------


@pytest.mark.parametrize("each", NUMBERS, ids=lambda each: each.key)
def test_every_number_of_the_paper_is_fitted_checked_or_not_comparable_for_a_reason(
    each: PaperNumber,
) -> None:
    use, why = use_of(each)
    assert why or each.measure is Measure.THROUGHPUT_RATIO
    testbeds = [name for name, of in WORKLOADS.items() if each.workload in (*of, None)]
    for testbed in testbeds:
        (row,) = [row for row in stored()[testbed]["numbers"] if row["key"] == each.key]
        assert (row["use"], row["why"], row["paper"]) == (use, why, each.value), RENEW
        if use != "not comparable":
            off = exp(row["residual_fitted"])
            assert off == pytest.approx(exp(residual(each, row["fitted"])), rel=0.02)


@pytest.mark.parametrize("testbed", WORKLOADS)
def test_a_fitted_fleet_is_what_the_stored_fit_says(testbed: str) -> None:
    fitted = {row["name"]: row["fitted"] for row in stored()[testbed]["parameters"]}
    text = fleets.as_toml(fleets.table(testbed, fitted), comment(testbed))
    assert presets()[f"{testbed}_fitted"].read_text(encoding="utf-8") == text, RENEW


def test_the_document_has_the_tables_of_the_stored_fits() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert renewed(text, stored()) == text, RENEW
