"""Each sentence is said where its condition holds, and not on the other side of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedoptima.analysis import findings as words
from fedoptima.analysis.balance import Contribution
from fedoptima.analysis.idle_time import Usage
from fedoptima.analysis.run_view import RunView
from fedoptima.analysis.spans import Kind
from fedoptima.core.effects import Halt, Note
from fedoptima.core.types import SERVER, NodeId
from tests.reporting.views import (
    FAST,
    SLOW,
    ended,
    view,
    with_curve,
    with_lane,
    with_queue,
    with_usage,
)

BUSY = Usage(100.0, 0.0, 0.0)


def waits(for_slower: float, for_server: float = 0.0) -> Usage:
    return Usage(100.0 - for_slower - for_server, for_server, for_slower)


def said(part: object, view: RunView) -> str:
    return " ".join(part(view))  # type: ignore[operator]


# ---- who sets the pace ---------------------------------------------------------------------------


def test_who_is_waited_for_sets_the_pace_and_is_named_with_its_speed() -> None:
    text = said(words.pace, with_usage(slow=BUSY, fast=waits(80)))
    assert text.startswith("slow (0.2 GFLOP/s) set the pace")
    assert "80.0 % of their time" in text


def test_a_short_wait_is_not_worth_saying() -> None:
    assert said(words.pace, with_usage(slow=BUSY, fast=waits(11))) != ""
    assert said(words.pace, with_usage(slow=BUSY, fast=waits(9))) == ""


def test_who_waits_as_well_does_not_set_the_pace() -> None:
    text = said(words.pace, with_usage(slow=waits(30), fast=waits(40)))
    assert "none was always the last" in text
    assert "set the pace" not in text


def test_nobody_sets_the_pace_where_devices_wait_longer_for_the_server() -> None:
    text = said(words.pace, with_usage(slow=waits(0, 50), fast=waits(20, 50)))
    assert "set the pace" not in text
    assert text.endswith("above all for slow (0.2 GFLOP/s).")


def test_an_asynchronous_run_has_no_pace() -> None:
    assert said(words.pace, view("fedoptima")) == ""
    assert said(words.pace, view("fl")) != ""


# ---- the server ----------------------------------------------------------------------------------


def server_is(use: Usage, queue: float = 5.0, cap: int | None = 32) -> str:
    base = with_usage(slow=BUSY, fast=BUSY)
    summary = replace(base.summary, usage={**base.summary.usage, SERVER: use})
    return said(words.server, with_queue(replace(base, summary=summary), queue, cap))


def test_an_idle_server_is_told_with_the_type() -> None:
    assert server_is(Usage(69, 31, 0)).startswith(
        "The server was idle 31.0 % of its time, all Type I"
    )
    assert "of its time, all Type I" in server_is(Usage(69, 31, 0))
    assert "21.0 % Type I, 10.0 % Type II" in server_is(Usage(69, 21, 10))
    assert server_is(Usage(95.1, 4.9, 0)).startswith("The server was busy")


def test_time_with_reused_batches_is_told_beside_that_with_fresh_ones() -> None:
    reusing = with_usage(**{SERVER: Usage(36.0, 1.0, 0.0, 63.0)})
    text = said(words.server, reusing)
    assert "busy 36.0 % of its time with fresh batches, and 63.0 % with batches that it had" in text
    assert "idle" not in text
    assert "limit" not in text


def test_a_busy_server_is_at_its_limit() -> None:
    assert "at its limit" in server_is(Usage(95, 5, 0))
    assert "at its limit" not in server_is(Usage(94, 6, 0))


def test_a_full_queue_is_told() -> None:
    assert "30 of 32 batches waiting" in server_is(BUSY, queue=30)
    assert "waiting" not in server_is(BUSY, queue=25)
    assert "waiting" not in server_is(BUSY, queue=30, cap=None)


def test_an_empty_queue_is_told_of_an_idle_server() -> None:
    assert "0.5 activation batches" in server_is(Usage(60, 40, 0), queue=0.5)
    assert "activation batches" not in server_is(Usage(60, 40, 0), queue=1.5)


def test_a_server_that_only_merges_is_said_to() -> None:
    assert "only merges" in said(words.server, view("fl"))
    assert "only merges" not in server_is(Usage(60, 40, 0))


# ---- devices -------------------------------------------------------------------------------------


def test_idle_devices_are_told_with_both_types_and_the_idlest() -> None:
    text = said(words.devices, with_usage(slow=BUSY, fast=waits(20, 10)))
    assert "idle 15.0 %" in text
    assert "5.0 % waiting for the other side (Type I), 10.0 % for slower devices (Type II)" in text
    assert text.endswith("fast most of all, 30.0 %.")


def test_busy_devices_are_only_said_to_be_busy() -> None:
    text = said(words.devices, with_usage(slow=BUSY, fast=waits(0, 9)))
    assert text == "The devices were busy 95.5 % of their time."


def test_a_link_in_constant_use_is_told() -> None:
    base = with_usage(slow=BUSY, fast=BUSY)
    full, almost = ({Kind.SEND: (1.0,) * bins} for bins in (9, 8))
    assert said(words.links, with_lane(base, SLOW, full)).startswith(
        "slow had something on the way"
    )
    assert said(words.links, with_lane(base, SLOW, almost)) == ""


def test_what_was_lost_is_told() -> None:
    base = view("fedoptima")
    assert said(words.losses, base) == ""
    stale = replace(base.summary.staleness, refused=2, merged=8)
    late = {FAST: Contribution(0, 3, 0, 0, 0, 0.0, 0.0)}
    balance = replace(base.summary.balance, devices=late)
    text = said(
        words.losses,
        replace(
            base,
            summary=replace(base.summary, staleness=stale, balance=balance, refused_samples=1200),
        ),
    )
    assert "2 updates of 10 came too late" in text
    assert "1,200 samples" in text
    assert "3 activation batches dropped" in text


@pytest.mark.parametrize(("jain", "told"), [(0.79, True), (0.8, False), (None, False)])
def test_uneven_use_is_told(jain: float | None, told: bool) -> None:
    base = view("fedoptima")
    used = {
        NodeId(name): Contribution(batches, 0, 0, 0, 0, 0.0, 0.0)
        for name, batches in (("a", 2), ("b", 90))
    }
    balance = replace(base.summary.balance, batches_jain=jain, devices=used)
    text = said(words.evenness, replace(base, summary=replace(base.summary, balance=balance)))
    assert (text != "") == told
    if told:
        assert "90 batches of b, and 2 of a" in text


def test_a_device_whose_data_hardly_counts_is_told() -> None:
    base = view("fedoptima")
    assert said(words.influence, base) == ""
    devices = {
        SLOW: Contribution(0, 0, 0, 0, 0, 0.0, 0.0, 0.5, handed_in=3),
        FAST: Contribution(0, 0, 0, 0, 3, 1.0, 1.0, 0.5, handed_in=3),
    }
    balance = replace(base.summary.balance, devices=devices)
    text = said(words.influence, replace(base, summary=replace(base.summary, balance=balance)))
    assert text.startswith("slow held 50.0 % of the data and had 0.0 % of the merge weight")


def test_absences_and_problems_are_told() -> None:
    base = with_usage(slow=BUSY, fast=BUSY)
    assert said(words.absences, base) == ""
    gone = with_lane(base, FAST, {Kind.AWAY: (0.5, 0.7)})
    assert said(words.absences, gone) == "fast was away, 12.0 s in all."
    broken = replace(base, summary=replace(base.summary, problems=((SLOW, "disk full."),)))
    assert said(words.absences, broken) == "slow had a problem: disk full."


# ---- how it ended --------------------------------------------------------------------------------


def test_a_run_that_goes_on_is_said_to() -> None:
    over = Halt("2 epochs")
    assert "has not ended" in said(words.outcome, ended(view(), None))
    assert "has not ended" not in said(words.outcome, ended(view(), over))
    failed = ended(view(), Halt("loss is nan", failed=True))
    assert "The run failed: loss is nan." in said(words.outcome, failed)


def test_the_best_accuracy_is_told_where_it_was_not_the_last() -> None:
    up = with_curve(view(), "a", (1, 0.5), (2, 0.8))
    down = with_curve(view(), "a", (1, 0.8), (2, 0.5))
    assert "accuracy 80.0 %." in said(words.outcome, up)
    assert "accuracy 50.0 % (best 80.0 %)" in said(words.outcome, down)


def test_a_dry_run_is_said_to_be_one() -> None:
    dry = replace(view(), description=replace(view().description, dry=True))
    assert "dry run" in said(words.outcome, dry)
    assert "dry run" not in said(words.outcome, view())


def test_a_real_summary_has_no_sentence_twice() -> None:
    sentences = words.describe(view("fl", churn=True))
    assert len(sentences) == len(set(sentences)) >= 4


# ---- several runs --------------------------------------------------------------------------------


def test_runs_are_measured_by_what_all_of_them_came_to() -> None:
    a = with_curve(view(), "a", (1, 0.5), (2, 0.7), (9, 0.9))
    b = with_curve(view(), "b", (3, 0.6), (5, 0.7))
    text = " ".join(words.compare([a, b]))
    assert "Every run came to 70.0 % accuracy: a first, after 2.0 s; b last, after 5.0 s." in text
    assert "The best accuracy is that of a, 90.0 %." in text


def test_runs_of_a_task_without_accuracy_are_measured_by_their_loss() -> None:
    def with_losses(label: str, *points: tuple[float, float]) -> RunView:
        of = with_curve(view(), label, *points)
        curve = tuple(replace(p, accuracy=None, loss=p.accuracy) for p in of.summary.curve)
        return replace(of, summary=replace(of.summary, curve=curve))

    a = with_losses("a", (1, 4.0), (2, 2.0), (9, 1.0))
    b = with_losses("b", (3, 3.0), (5, 2.0))
    text = " ".join(words.compare([a, b]))
    assert "Every run came to a loss of 2: a first, after 2.0 s; b last, after 5.0 s." in text
    assert "The best loss is that of a, 1." in text


def test_without_accuracy_nothing_is_said_about_it() -> None:
    a = with_curve(view(), "a", (1, 0.5))
    b = with_curve(view(), "b")
    assert "accuracy" not in " ".join(words.compare([a, b]))


def test_idle_time_and_memory_are_compared_only_where_they_differ() -> None:
    a, b = with_curve(view(), "a", (1, 0.5)), with_curve(view(), "b", (1, 0.5))
    assert words.compare([a, b]) == []
    text = " ".join(words.compare([view("fedoptima"), view("fl")]))
    assert "The mean device was idle least with fedoptima" in text
    assert "The server held " in text


def test_differences_that_are_not_seen_in_the_figures_are_not_told() -> None:
    """ "idle least with fedoptima (100 %), most with fl (100 %)"."""
    a, b = view("fedoptima"), view("fl")
    usage = {**a.summary.usage}
    near = {node: replace(use, idle_1=use.idle_1 + 1e-9) for node, use in usage.items()}
    memory = a.summary.memory
    peak = replace(memory.total, peak=memory.total.peak + 1)
    same = replace(a.summary, usage=near, memory=replace(memory, total=peak))
    assert words.compare([a, replace(b, summary=same)]) == []


def test_one_run_is_compared_with_nothing() -> None:
    assert words.compare([view()]) == []


# ---- work that was not counted -------------------------------------------------------------------


def test_work_that_is_an_estimate_is_named_with_its_formula() -> None:
    counted = view("fedoptima")
    assert counted.plan is not None
    assert said(words.estimates, counted) == ""
    first, *others = counted.plan.blocks
    first = replace(first, by_formula=("aten::embedding",))
    plan = replace(counted.plan, blocks=(first, *others))
    assert said(words.estimates, replace(counted, plan=plan)) == (
        f"The work of {first.name} is an estimate: aten::embedding cannot be counted, and costs "
        "one FLOP for each element written."
    )


def test_what_a_device_said_of_itself_and_was_not_used_is_said() -> None:
    doubted = replace(view(), doubts=(Note("not planned for", SLOW, "it claims 1 FLOP/s"),))
    assert said(words.doubts, doubted) == "slow: not planned for: it claims 1 FLOP/s."
    assert said(words.doubts, view()) == ""
