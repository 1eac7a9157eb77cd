"""Figures show the summary's own numbers, and plotly accepts them."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from fedoptima.analysis.idle_time import Usage
from fedoptima.analysis.run_view import RunView
from fedoptima.core.types import SERVER, NodeId
from fedoptima.reporting.figures.course import course
from fedoptima.reporting.figures.devices import ages, contributions, staleness
from fedoptima.reporting.figures.figure import (
    MOST_NODES,
    Figure,
    looks,
    node_name,
    shown_nodes,
    unit_for,
)
from fedoptima.reporting.figures.idle import idle_of_nodes, idle_of_runs
from fedoptima.reporting.figures.lanes import KINDS, timeline
from fedoptima.reporting.figures.server import memory, memory_of_runs, queue, traffic
from fedoptima.reporting.figures.tables import key_figures, nodes, splits
from tests.reporting.views import view, with_curve

METHODS = ("fedoptima", "fl", "fedasync", "fedbuff", "splitfed", "pipar", "oafl")


def all_figures(views: Sequence[RunView]) -> list[Figure]:
    found = [*course(views), idle_of_runs(views), memory_of_runs(views), traffic(views)]
    for each in views:
        parts = (queue(each), contributions(each), staleness(each), ages(each), memory(each))
        found += [idle_of_nodes(each), *(part for part in parts if part is not None)]
    return found


def traces(figure: Figure | None) -> list[dict[str, Any]]:
    assert figure is not None
    return cast("list[dict[str, Any]]", list(figure.traces))


@pytest.mark.parametrize("method", METHODS)
def test_plotly_accepts_every_figure(method: str) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects", reason="plotly is an extra")
    figures = all_figures([view(method), view("fl", label="other")])
    assert len(figures) >= 10
    for figure in figures:
        graph_objects.Figure({"data": list(figure.traces), "layout": figure.layout})
        assert figure.traces, figure.name
        assert figure.reading.rstrip().endswith((".", ")"))
        json.dumps(figure.plain(), allow_nan=False)


@pytest.mark.parametrize("method", METHODS)
def test_idle_bars_are_the_summarys_seconds_an_epoch(method: str) -> None:
    run = view(method)
    type_1, type_2 = traces(idle_of_nodes(run))
    for index, node in enumerate(shown_nodes(run)):
        use = run.summary.usage_per_epoch(run.summary.usage[node])
        assert type_1["x"][index] == pytest.approx(use.idle_1, rel=1e-5)
        assert type_2["x"][index] == pytest.approx(use.idle_2, rel=1e-5)
        assert type_1["customdata"][index] == node


def test_idle_by_run_is_the_server_and_the_mean_device() -> None:
    run = view("fl")
    _, type_2 = traces(idle_of_runs([run]))
    mean = run.summary.usage_per_epoch(run.summary.device_usage)
    assert type_2["x"] == pytest.approx([0.0, mean.idle_2], rel=1e-5)


def test_accuracy_is_drawn_in_percent_for_every_run() -> None:
    a, b = with_curve(view(), "a", (1, 0.5), (2, 0.75)), with_curve(view("fl"), "b", (4, 0.25))
    over_time, over_epochs = course([a, b])[:2]
    assert [trace["name"] for trace in traces(over_time)] == ["a", "b"]
    assert traces(over_time)[0]["x"] == [1, 2]
    assert traces(over_time)[0]["y"] == [50, 75]
    assert traces(over_epochs)[1]["y"] == [25]


def test_a_dry_run_has_no_accuracy_figure() -> None:
    dry = with_curve(view(), "dry")
    assert not any(figure.name.startswith("accuracy") for figure in course([dry]))


def test_throughput_is_of_the_side_it_names() -> None:
    run = view("fedoptima")
    figures = {figure.name: figure for figure in course([run])}
    stretches = run.summary.stretches
    for side in ("device", "server"):
        speeds = [getattr(stretch.throughput, side) for stretch in stretches]
        drawn = traces(figures[f"throughput-{side}"])[0]["y"]
        assert drawn[:-1] == pytest.approx(speeds, rel=1e-5)
    assert "throughput-server" not in {figure.name for figure in course([view("fl")])}


def test_the_queue_is_drawn_against_its_cap() -> None:
    waiting, cap = traces(queue(view("fedoptima")))
    assert max(waiting["y"]) <= 32
    assert cap["y"] == [32, 32]
    assert len(traces(queue(view("splitfed")))) == 1  # it has no cap
    assert queue(view("fl")) is None


def test_memory_has_the_papers_formulas_where_something_is_split() -> None:
    held = view("oafl").summary.memory
    _, shared, copies = traces(memory(view("oafl")))
    assert shared["y"][0] == pytest.approx(held.formula_shared / 2**20, rel=1e-5)
    assert copies["y"][0] == pytest.approx(held.formula_copies / 2**20, rel=1e-5)
    assert len(traces(memory(view("fl")))) == 1


def test_bytes_per_epoch_sum_to_the_traffic() -> None:
    run = view("splitfed")
    drawn = traces(traffic([run]))
    for row, volume in enumerate((run.summary.traffic.up, run.summary.traffic.down)):
        total = sum(trace["x"][row] for trace in drawn)
        assert total == pytest.approx(run.summary.per_epoch(volume.total) / 1e6, rel=1e-4)


def test_contributions_are_batches_or_else_updates() -> None:
    run = view("fedoptima")
    (trace,) = traces(contributions(run))
    assert trace["x"] == [entry.batches for entry in run.summary.balance.devices.values()]
    figure = contributions(view("fl"))
    assert figure.title == "Updates merged per device"
    assert sum(traces(figure)[0]["x"]) == view("fl").summary.staleness.merged


def test_ages_count_every_batch_that_was_used() -> None:
    run = view("fedoptima")
    (trace,) = traces(ages(run))
    used = sum(entry.batches for entry in run.summary.balance.devices.values())
    assert used <= sum(trace["customdata"]) <= used + 1  # one may be in work at the end
    assert sum(trace["y"]) == pytest.approx(100, rel=1e-4)
    longest = run.summary.staleness.activation_age_max
    assert 2.0 ** (len(run.summary.staleness.activation_ages) - 1) / 1000 > longest
    assert ages(view("fl")) is None


def test_staleness_is_drawn_where_there_is_some() -> None:
    run = view("fedoptima")
    mean, most = traces(staleness(run))
    entries = [run.summary.staleness.devices[node] for node in run.devices]
    assert mean["x"] == pytest.approx([entry.mean for entry in entries], rel=1e-5)
    assert most["x"] == [entry.max for entry in entries]
    assert staleness(view("fl")) is None


# ---- the timeline --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_timelines_spans_sum_to_the_idle_time(method: str) -> None:
    run = view(method)
    data = cast("dict[str, Any]", timeline(run).lanes)
    spans = data["spans"]
    start, end = (np.frombuffer(b64decode(spans[key]), "<f4") for key in ("start", "end"))
    node, kind = (np.frombuffer(b64decode(spans[key]), np.uint8) for key in ("node", "kind"))
    for index, entry in enumerate(data["nodes"]):
        use = run.summary.usage[entry["name"]]
        for name, seconds in (("idle_1", use.idle_1), ("idle_2", use.idle_2)):
            mine = (node == index) & (kind == [k.value for k in KINDS].index(name))
            assert float((end - start)[mine].sum()) == pytest.approx(seconds, abs=1e-3)


def test_the_timelines_bins_say_the_same() -> None:
    run = view("fl")
    data = cast("dict[str, Any]", timeline(run, exact=False).lanes)
    assert "spans" not in data
    lane = data["nodes"].index(next(e for e in data["nodes"] if e["name"] == "fast"))
    packed = data["shares"][lane][str([k.value for k in KINDS].index("idle_2"))]
    shares = np.frombuffer(b64decode(packed), np.uint8) / 255
    seconds = float(shares.sum()) * data["binSeconds"]
    assert seconds == pytest.approx(run.summary.usage[NodeId("fast")].idle_2, rel=0.02)


def test_the_server_has_the_first_lane() -> None:
    data = cast("dict[str, Any]", timeline(view("fl")).lanes)
    assert [entry["name"] for entry in data["nodes"]] == ["server", "fast", "middle", "slow"]


# ---- what all share ------------------------------------------------------------------------------


def test_a_large_fleet_is_shown_by_its_idlest_devices() -> None:
    run = view("fl")
    many = {NodeId(f"d{i:03d}"): Usage(1.0, float(i), 0.0) for i in range(100)}
    usage = {**many, SERVER: Usage(1.0, 0.0, 0.0)}
    large = replace(run, summary=replace(run.summary, usage=usage))
    shown = shown_nodes(large)
    assert shown == [SERVER, *(NodeId(f"d{i:03d}") for i in range(100 - MOST_NODES, 100))]
    assert "Of 100 devices" in idle_of_nodes(large).reading
    assert "Of " not in idle_of_nodes(run).reading


def test_runs_of_one_method_look_different() -> None:
    runs = [view("fl", label=f"fl {i}") for i in range(7)]
    assert len(set(looks(runs))) == 7
    assert looks([view("fl")])[0].dash == "solid"
    assert looks([view("fl"), view("fedoptima")]) == looks([view("fedoptima"), view("fl")])[::-1]


def test_names_are_cut_and_cannot_be_markup() -> None:
    assert node_name("<b>x</b>") == "&lt;b&gt;x&lt;/b&gt;"
    assert len(node_name("a" * 40)) == 18
    assert node_name("a" * 18) == "a" * 18


@pytest.mark.parametrize(
    ("seconds", "unit"), [(299, "s"), (300, "min"), (7199, "min"), (7200, "h")]
)
def test_time_has_the_unit_that_fits(seconds: float, unit: str) -> None:
    assert unit_for(seconds).name == unit


# ---- tables --------------------------------------------------------------------------------------


def test_tables_have_a_cell_for_every_column() -> None:
    runs = [view("fedoptima"), view("fl")]
    for table in (key_figures(runs), nodes(runs[0]), splits(runs[0])):
        assert table is not None
        assert {len(row) for row in table.rows} == {len(table.head)}


def test_figures_that_no_run_has_are_not_in_the_table() -> None:
    def names(*runs: RunView) -> list[str]:
        return [row[0] for row in key_figures(runs).rows]

    measured, dry = with_curve(view(), "a", (1, 0.5)), with_curve(view(), "dry")
    assert names(measured, dry)[:2] == ["final accuracy", "best accuracy"]
    assert names(dry)[0] == "time"


def test_the_split_that_was_used_is_marked() -> None:
    table = splits(view("fedoptima"))
    assert table is not None
    assert table.marked == 0  # split.at = 1
    assert splits(view("fl")) is None
