"""Who waited how long: the same numbers wherever somebody reads them, for the same run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.request import urlopen

import pytest

pytest.importorskip("plotly", reason="needs pip install 'fedoptima[report]'")
pytest.importorskip("starlette", reason="needs pip install 'fedoptima[dashboard]'")
pytest.importorskip("uvicorn", reason="needs pip install 'fedoptima[dashboard]'")
pytest.importorskip("prometheus_client", reason="needs pip install 'fedoptima[track]'")

from prometheus_client.parser import text_string_to_metric_families

from fedoptima.analysis.formatting import brief, percent
from fedoptima.analysis.idle_time import Usage
from fedoptima.analysis.summary import Summary
from fedoptima.comparison.rows import Figures
from fedoptima.comparison.runner import compare
from fedoptima.core.types import SERVER
from fedoptima.reporting.report import report
from fedoptima.trace.reader import read_trace
from fedoptima.tracking.prometheus import Prometheus
from tests.browser.live import LivePage
from tests.browser.serving import LivePages
from tests.browser.visits import Browsers, Visit
from tests.comparison.test_compare import tiny
from tests.tracking.moments import moment_of, subject_of

METHOD = "splitfed"  # here nodes wait in both ways
Numbers = Mapping[str, tuple[float, float]]  # by node: idle seconds of Type I and II


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("same")


@pytest.fixture(scope="module")
def figures(folder: Path) -> Figures:
    """As the comparison's table has them."""
    made = compare(tiny(folder), methods=["fl", METHOD], dry=True, jobs=1, out=folder / "out")
    (figures,) = (run.figures for run in made.runs if run.method == METHOD)
    assert figures is not None
    return figures


@pytest.fixture(scope="module")
def run(folder: Path, figures: Figures) -> Path:
    (trace,) = folder.glob(f"out/**/*{METHOD}*/trace.jsonl.gz")
    return trace.parent


@pytest.fixture(scope="module")
def summary(run: Path) -> Summary:
    """What the trace says."""
    return moment_of(read_trace(run / "trace.jsonl.gz")).summary


@pytest.fixture(scope="module")
def numbers(summary: Summary) -> Numbers:
    found = {node: (use.idle_1, use.idle_2) for node, use in summary.usage.items()}
    assert len(found) == 4
    assert all(one > 0 for one, _ in found.values())
    assert sum(two > 0 for _, two in found.values()) > 1
    return found


def test_in_the_comparison(figures: Figures, numbers: Numbers) -> None:
    devices = [idle for node, idle in numbers.items() if node != SERVER]
    mean_1, mean_2 = (sum(kind) / len(devices) for kind in zip(*devices, strict=True))
    assert figures.server_idle * figures.epochs == pytest.approx(sum(numbers[SERVER]))
    assert figures.device_idle_1 * figures.epochs == pytest.approx(mean_1)
    assert figures.device_idle_2 * figures.epochs == pytest.approx(mean_2)


def test_for_prometheus(run: Path, numbers: Numbers) -> None:
    page = Prometheus(subject_of(run), 0)
    try:
        page.observe(moment_of(read_trace(run / "trace.jsonl.gz")))
        with urlopen(page.address, timeout=120) as answer:
            text = answer.read().decode()
    finally:
        page.close()
    idle = {
        (sample.labels["node"], sample.labels["type"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "fedoptima_node_idle_seconds"
    }
    assert {node: (idle[node, "1"], idle[node, "2"]) for node, _ in idle} == numbers


def test_in_the_report(
    browsers: Browsers, run: Path, summary: Summary, numbers: Numbers, tmp_path: Path
) -> None:
    made = report([run], out=tmp_path / "report.html", advice=False)
    (plain,) = json.loads(made.to_json())["runs"]
    usage = plain["usage"]
    assert {node: (use["idle_1"], use["idle_2"]) for node, use in usage.items()} == numbers
    visit = browsers.open(made.path.as_uri())
    visit.waits_for("() => document.documentElement.dataset.drawn === 'yes'")
    shown = table_of(visit, "Nodes")
    assert set(shown) == set(numbers)
    for node, use in summary.usage.items():
        each = summary.usage_per_epoch(use)
        assert shown[node][2:7] == [
            percent(use.utilisation),
            *(brief(each.idle_1), percent(use.idle_1_share)),
            *(brief(each.idle_2), percent(use.idle_2_share)),
        ]
    drawn = visit.ask(
        "() => document.getElementById('run-0-idle')._fullData.map(({ x }) => [...x])"
    )
    assert sum(map(sum, drawn)) * summary.epochs == pytest.approx(
        sum(map(sum, numbers.values())), rel=1e-5
    )


def table_of(visit: Visit, title: str) -> dict[str, list[str]]:
    """By the first cell of a row, the others."""
    rows = visit.page.locator(f"xpath=//h3[.='{title}']/following::table[1]/tbody/tr").all()
    cells = [row.locator("td").all_text_contents() for row in rows]
    return {first: others for first, *others in cells}


def test_on_the_live_page(live: LivePages, run: Path, summary: Summary, numbers: Numbers) -> None:
    address = live.serve(run)
    page = live.open(address)
    page.says("#state", "finished")
    state = page.visit.ask(
        "(run) => fetch(`/api/state?run=${run}`).then((answer) => answer.json())", run.name
    )
    rows = state["rows"]["shown"]
    assert {row["name"]: (row["idle_1"], row["idle_2"]) for row in rows} == numbers
    for node, use in summary.usage.items():
        page.shows(node, "idle I", percent(use.idle_1_share))
        page.shows(node, "idle II", percent(use.idle_2_share))
    assert_tile(page, "server idle", summary.server_usage)
    assert_tile(page, "devices idle, mean", summary.device_usage)


def assert_tile(page: LivePage, label: str, use: Usage) -> None:
    value, more = page.tile(label)
    assert value == percent(use.idle_1_share + use.idle_2_share)
    assert more == f"I {percent(use.idle_1_share)}, II {percent(use.idle_2_share)}"
