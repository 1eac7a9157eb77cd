"""The page is whole, asks nobody for anything, and lets no name break out of its place."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fedoptima.analysis.run_view import RunView
from fedoptima.analysis.spans import Kind
from fedoptima.core.types import NodeId
from fedoptima.reporting.report_page import Page, render
from tests.reporting.views import view

pytest.importorskip("plotly", reason="plotly is an extra")

PAGE = Page("a title", "made today")


class Reader(HTMLParser):
    """Elements, the text outside of scripts and styles, and what is opened is closed."""

    VOID = frozenset({"meta", "link", "br", "input"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            self.scripts.append(data)
        elif inside != "style":
            self.text += data

    def ids(self) -> list[str]:
        return [str(attrs["id"]) for _, attrs in self.elements if "id" in attrs]


def read(views: Sequence[RunView], page: Page = PAGE) -> Reader:
    reader = Reader(render(page, views))
    assert reader.open == []
    return reader


def data_of(reader: Reader) -> dict[str, dict[str, object]]:
    found = json.loads(next(script for script in reader.scripts if script.startswith('{"figures"')))
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def single() -> Reader:
    return read([view("fedoptima")], Page("a title", "made today", ["Do this.", "It is so."]))


@pytest.fixture(scope="module")
def several() -> Reader:
    return read([view("fedoptima"), view("fl"), view("splitfed", churn=True)])


def test_nothing_is_loaded_from_anywhere(several: Reader) -> None:
    for tag, attributes in several.elements:
        assert "src" not in attributes, tag
        assert attributes.get("href", "data:,") == "data:,", tag
    policy = next(a["content"] for _, a in several.elements if "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "connect-src" not in policy
    assert "http" not in policy


def test_the_button_that_sends_figures_away_is_off(single: Reader) -> None:
    own = single.scripts[-1]
    assert '"sendChartToCloud"' in own
    assert 'plotlyServerURL: ""' in own


def test_plotly_is_in_it_once(several: Reader) -> None:
    assert sum(len(script) > 1_000_000 for script in several.scripts) == 1


def test_every_plot_has_its_figure_and_the_reverse(several: Reader) -> None:
    plots = [str(a["id"]) for _, a in several.elements if a.get("class") == "plot"]
    assert sorted(plots) == sorted(data_of(several)["figures"])
    assert len(several.ids()) == len(set(several.ids()))


def test_a_single_run_shows_what_the_report_is_for(single: Reader) -> None:
    figures = {key.partition("-")[2] for key in data_of(single)["figures"]}
    wanted = {"accuracy-time", "accuracy-epochs", "throughput-device", "throughput-server"}
    wanted |= {"0-timeline", "0-idle", "0-queue", "0-contributions", "0-staleness", "0-ages"}
    assert wanted | {"0-memory", "0-traffic"} == figures
    assert "Where the model could be cut" in single.text
    assert "choose-run" not in single.ids()


def test_of_several_runs_one_is_shown_and_the_others_can_be_chosen(several: Reader) -> None:
    runs = [a for tag, a in several.elements if tag == "section" and a.get("class") == "run"]
    assert ["hidden" in attributes for attributes in runs] == [False, True, True]
    options = [a["value"] for tag, a in several.elements if tag == "option"]
    assert options == [attributes["id"] for attributes in runs]
    assert {"all-idle-runs", "all-traffic", "all-memory-runs"} <= set(data_of(several)["figures"])


def test_without_javascript_there_are_the_main_numbers(single: Reader) -> None:
    assert any(tag == "noscript" for tag, _ in single.elements)
    assert single.text.count("device idle II, s/epoch") == 2  # there, and at the end


def test_advice_is_shown_where_there_is_some(single: Reader, several: Reader) -> None:
    assert "What would help" in single.text
    assert "Do this." in single.text
    assert "What would help" not in several.text


def test_names_and_errors_cannot_become_markup() -> None:
    evil = "</script><script>alert(1)</script><img src=x>"
    base = view("fedoptima")
    usage = {NodeId(evil if node == "slow" else node): u for node, u in base.summary.usage.items()}
    lanes = {NodeId(evil if n == "slow" else n): lane for n, lane in base.timeline.lanes.items()}
    run = replace(
        base,
        label=evil,
        summary=replace(base.summary, usage=usage, problems=((NodeId(evil), evil),)),
        timeline=replace(base.timeline, lanes=lanes),
    )
    reader = read([run, base], Page(evil, evil, [evil]))
    assert not any(tag == "img" for tag, _ in reader.elements)
    assert len(reader.scripts) == 3
    assert evil in reader.text
    # Plotly would take tags in names for formatting.
    drawn = {k: v for k, v in data_of(reader)["figures"].items() if "timeline" not in k}
    assert "<img" not in json.dumps(drawn)


def test_colours_of_kinds_are_there_for_light_and_dark(single: Reader) -> None:
    kinds = data_of(single)["kinds"]
    assert [kind["key"] for kind in kinds] == list(Kind)
    page = render(PAGE, [view("fl")])
    assert "prefers-color-scheme: dark" in page
    assert re.search(r"--light:#DDDDDD;--dark:#444444", page)
