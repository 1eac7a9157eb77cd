from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.paper_numbers import NUMBERS, Measure, PaperNumber, number
from fedoptima.reproduction.catalogue import read_catalogue
from fedoptima.reproduction.document import (
    Reproduction,
    as_markdown,
    notes_of,
    table_of,
    what,
)
from fedoptima.reproduction.ours import Results, beside, figure_of, ours
from fedoptima.reproduction.planned import Choice, Planned, queue
from fedoptima.reproduction.records import Made, Record, Records
from fedoptima.reproduction.verdicts import Row, Verdict, read_reasons, rows, verdict_of

PAPER = Path(__file__).parents[2] / "recipes" / "paper"
MADE = Made("fedoptima reproduce", "abc", "2026-11-16", "a machine", "torch 2")
CATALOGUE = read_catalogue(PAPER)


@cache
def planned() -> dict[str, list[Planned]]:
    """Takes seconds: not while tests are collected, which every worker does."""
    return queue(CATALOGUE, CATALOGUE.figures, Choice(seeds=2))


def recorded(
    folder: Path, figure: str, values: dict[str, dict[str, float]], *, rise: float = 0.0
) -> Results:
    """Figures by label; ``rise``: what a curve climbs in an hour, up to the best accuracy."""
    records = Records(folder)
    records.add(
        *(_record(run, values[run.label], rise) for run in planned()[figure] if run.label in values)
    )
    return Results(planned(), records)


def _record(run: Planned, figures: dict[str, float], rise: float) -> Record:
    best, curve = figures.get("best_accuracy", 0.0), []
    if rise:
        hours = [best * step / rise / 10 for step in range(11)]
        curve = [(3600 * hour, hour, rise * hour) for hour in hours]
    case = run.case
    return Record(
        run.id,
        run.workload,
        run.kind,
        case.method,
        dict(case.settings),
        run.seed,
        figures,
        curve,
        MADE,
    )


def test_every_number_of_the_paper_is_told_by_a_figure_that_exists() -> None:
    assert {figure_of(stated) for stated in NUMBERS} <= set(CATALOGUE.figures)


def test_a_number_without_runs_is_not_run_and_has_the_command(tmp_path: Path) -> None:
    it = Reproduction(CATALOGUE, planned(), Records(tmp_path), {})
    assert {row.verdict for row in rows(it.results, {})} == {Verdict.NOT_RUN}
    text = as_markdown(it)
    assert "| not run | `fedoptima reproduce accuracy-image --device cuda` |" in text
    assert "| not run | `fedoptima reproduce communication` |" in text
    assert text.count("| not run |") == len(NUMBERS)


def test_ratios_are_taken_seed_by_seed(tmp_path: Path) -> None:
    results = recorded(
        tmp_path,
        "communication",
        {
            "b_image: oafl": {"bytes_up": 70.0, "bytes_down": 54.0},
            "b_image: splitfed": {"bytes_up": 60.0, "bytes_down": 40.0},
        },
    )
    values = ours(number("b_image.communication.oafl"), results)
    assert values == pytest.approx([0.24])
    row = Row(number("b_image.communication.oafl"), values, None)
    assert (row.paper, row.ours, row.verdict) == ("+24.0 %", "+24.0 %", Verdict.AGREES)


def test_the_best_of_the_others_counts_for_throughput(tmp_path: Path) -> None:
    speeds = {"fedoptima": 100.0, "fedasync": 70.0, "fl": 20.0, "oafl": 65.0}
    values = {
        f"a_image: {m}": {"useful_throughput": s, "device_throughput": 2 * s}
        for m, s in speeds.items()
    }
    results = recorded(tmp_path, "throughput-image", values)
    assert ours(number("a_image.throughput.fedasync"), results) == [0.7]
    assert ours(number("a_image.throughput.others"), results) == [0.65]  # not of the one named
    assert beside(number("a_image.throughput.fedasync"), results) == "in device samples: 0.70"


def test_idle_time_is_compared_by_share_of_the_time_as_well(tmp_path: Path) -> None:
    idle = {"fedoptima": (5.0, 0.1), "fedasync": (6.0, 0.04), "fl": (200.0, 0.5)}
    results = recorded(
        tmp_path,
        "idle-text",
        {
            f"a_text: {method}": {"device_idle_1": seconds, "device_idle_2": 0.0}
            | {"device_idle_1_share": share, "device_idle_2_share": 0.0}
            for method, (seconds, share) in idle.items()
        },
    )
    said = beside(number("idle.device"), results)
    assert said == "a_text 17 %; by share of the time: a_text -150 %"


def test_times_are_those_to_a_similar_accuracy_and_never_is_told(tmp_path: Path) -> None:
    results = recorded(
        tmp_path,
        "accuracy-image",
        {f"a_image: {m}": {"best_accuracy": best} for m, best in
         (("fedoptima", 0.84), ("fl", 0.84), ("oafl", 0.6))},
        rise=0.1,
    )  # fmt: skip
    assert ours(number("a_image.time.fl"), results) == [1.0, 1.0]
    assert ours(number("a_image.time.oafl"), results) == [None, None]
    assert ours(number("a_image.time.pipar"), results) == []
    assert verdict_of(number("a_image.time.oafl"), [None, None]) is Verdict.AGREES
    assert verdict_of(number("a_image.time.fl"), [1.0, None]) is Verdict.DIFFERS
    assert Row(number("a_image.time.fl"), [1.0, None], None).ours == "1x (1 of 2)"
    (hours, _) = ours(number("a_image.hours.fedoptima"), results)
    assert hours == pytest.approx(8.4, rel=0.01)
    it = Reproduction(CATALOGUE, planned(), results.records, {})
    table = table_of(it, "a_image")
    assert table[0].startswith("| method | seeds | best accuracy, % | time to 83.2 %, h |")
    assert table[2].startswith("| fedoptima | 2 | 84.0 ± 0.0 | 8.40 ± 0.00 |")
    assert "| never |" in table[-1]


def test_a_table_without_pipar_says_what_pipar_would_take(tmp_path: Path) -> None:
    results = recorded(
        tmp_path,
        "accuracy-image",
        {f"a_image: {m}": {"best_accuracy": 0.84, "seconds": 30240.0, "epochs": 10.0} for m in
         ("fedoptima", "fl")},
        rise=0.1,
    )  # fmt: skip
    paces = {"splitfed": 4000.0, "pipar, own_split=false": 1000.0, "pipar, own_split=true": 1000.0}
    assert isinstance(results.records, Records)
    results.records.add(
        *(
            _record(run, {"seconds": 5 * paces[run.case.label], "epochs": 5.0}, 0.0)
            for run in planned()["throughput-image"]
            if run.workload == "a_image" and run.case.label in paces
        )
    )
    notes = notes_of(Reproduction(CATALOGUE, planned(), results.records, {}), "a_image")
    arithmetic = [note for note in notes if note.startswith("Estimate: ")]
    # FL takes 8.4 h and 3,024 s an epoch; PiPar would take 1,000 s.
    assert arithmetic[0].startswith(
        "Estimate: *pipar, own_split=false*, *pipar, own_split=true* would reach 83.2 % "
        "after 2.78 ± 0.00 h"
    )
    rounds = next(note for note in notes if note.startswith("Iterations of a round: 20 for "))
    assert "one pass over the data of a device for *fedasync*, *fedbuff*, *oafl*." in rounds


def test_a_workload_on_which_nothing_was_trained_is_named(tmp_path: Path) -> None:
    it = Reproduction(CATALOGUE, planned(), Records(tmp_path), {})
    untrained, same = notes_of(it, "b_image")
    command = "fedoptima reproduce accuracy-image --device cuda"
    assert untrained == f"No method has been trained on this yet: `{command}`."
    assert same == "All methods have the same optimiser, learning rates and rounds here."


@pytest.mark.parametrize(
    ("measure", "method", "paper", "mine", "verdict"),
    [
        (Measure.ACCURACY, "fedoptima", 0.824, 0.816, Verdict.AGREES),
        (Measure.ACCURACY, "fedoptima", 0.824, 0.84, Verdict.BETTER),
        (Measure.ACCURACY, "oafl", 0.20, 0.30, Verdict.DIFFERS),
        (Measure.HOURS, "fedoptima", 2.95, 0.5, Verdict.DIFFERS),  # on guessed speeds
        (Measure.TIME_RATIO, "fl", 11.7, 10.4, Verdict.AGREES),
        (Measure.TIME_RATIO, "fl", 11.7, 5.0, Verdict.DIFFERS),
        (Measure.RETENTION, "fedoptima", 0.67, 0.5, Verdict.DIFFERS),
    ],
)
def test_a_verdict_says_who_is_better(
    measure: Measure, method: str, paper: float, mine: float, verdict: Verdict
) -> None:
    assert (
        verdict_of(PaperNumber("k", "a_image", measure, method, paper, "Sec. 6"), [mine]) is verdict
    )


def test_a_gain_in_accuracy_is_one_over_the_best_variant_of_the_same_seed(tmp_path: Path) -> None:
    best = {"default": 0.42, "none": 0.35, "classifier": 0.30, "deep": 0.43}
    results = recorded(
        tmp_path,
        "auxiliary",
        {
            f"b_image: fedoptima, auxiliary={kind}": {"best_accuracy": accuracy}
            for kind, accuracy in best.items()
        },
    )
    stated = number("b_image.auxiliary.variants")
    assert ours(stated, results) == pytest.approx([-0.01, -0.01])
    assert ours(number("b_image.auxiliary.default"), results) == [0.42, 0.42]
    assert what(stated) == "b_image: fedoptima, accuracy gained over the best auxiliary variant"
    assert verdict_of(stated, [-0.01]) is Verdict.DIFFERS
    assert verdict_of(stated, [0.05]) is Verdict.AGREES


def test_a_gain_that_is_lost_among_seeds_does_not_agree(tmp_path: Path) -> None:
    values = {"counter": 0.842, "fifo": 0.841}
    results = recorded(
        tmp_path,
        "scheduler",
        {
            f"a_image: fedoptima, scheduler={kind}": {"best_accuracy": accuracy}
            for kind, accuracy in values.items()
        },
    )
    stated = number("a_image.scheduler")
    assert ours(stated, results) == pytest.approx([0.001, 0.001])
    assert verdict_of(stated, ours(stated, results)) is Verdict.DIFFERS
    assert verdict_of(stated, [0.008]) is Verdict.AGREES


def test_never_in_both_is_open_where_methods_are_not_tuned(tmp_path: Path) -> None:
    best = {"b_image: fedoptima": 0.2, "b_image: oafl": 0.1, "a_image: fedoptima": 0.8}
    best |= {"a_image: oafl": 0.1}
    results = recorded(
        tmp_path, "accuracy-image", {k: {"best_accuracy": v} for k, v in best.items()}, rise=0.1
    )
    found = {row.stated.key: row.verdict for row in rows(results, {}, ["b_image", "b_text"])}
    assert found["b_image.time.oafl"] is Verdict.OPEN
    assert found["a_image.time.oafl"] is Verdict.AGREES
    text = as_markdown(Reproduction(CATALOGUE, planned(), results.records, {}))
    assert "1 is open" in text


def test_more_than_about_so_much_is_better() -> None:
    about = PaperNumber("k", "a_image", Measure.ACCURACY, "fedoptima", 0.82, "Fig. 14", "", "about")
    assert verdict_of(about, [0.842]) is Verdict.BETTER
    assert verdict_of(about, [0.79]) is Verdict.DIFFERS


def test_a_reason_must_be_of_a_number_of_the_paper(tmp_path: Path) -> None:
    text = '[[reason]]\nnumbers = ["{}"]\ntext = "why"\nshown_by = "tests/x.py::test_y"\n'
    (tmp_path / "reasons.toml").write_text(text.format("a_image.time.fl"))
    assert read_reasons(tmp_path)["a_image.time.fl"].text == "why"
    (tmp_path / "reasons.toml").write_text(text.format("a_image.time.nobody"))
    with pytest.raises(ConfigError, match=r"a_image.time.nobody: is no number of the paper"):
        read_reasons(tmp_path)
