from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.reporting.palette import METHODS
from fedoptima.reproduction.catalogue import Catalogue, Panel
from fedoptima.reproduction.charts import Bar, Chart, Line, Point, charts_of, measure_of
from fedoptima.reproduction.figures import all_charts, interactive, write_page, write_pictures
from fedoptima.reproduction.planned import Choice, queue
from fedoptima.reproduction.records import Records
from fedoptima.reproduction.svg import draw
from tests.reproduction.paper import worked_off

SVG = "{http://www.w3.org/2000/svg}"


def test_a_figure_has_a_chart_for_each_panel_and_workload(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    records = worked_off(catalogue, ["idle", "cap", "split", "accuracy"], tmp_path / "out")
    planned = queue(catalogue, catalogue.figures, Choice(seeds=1))
    charts = all_charts(catalogue, catalogue.figures, planned, records)
    assert {name: len(found) for name, found in charts.items()} == {
        "idle": 4,
        "traffic": 1,  # from a run of another figure
        "cap": 1,
        "accuracy": 1,
        "auxiliary": 1,
        "split": 2,
    }
    assert [bar.name for bar in charts["idle"][0].bars] == ["fedoptima", "fl", "pipar"]
    assert [chart.title for chart in charts["idle"]] == ["Digits", "Digits, too"] * 2
    lines = {line.name: [point.x for point in line.points] for line in charts["cap"][0].lines}
    assert lines == {"fedoptima": [2.0, 4.0], "fl": [2.0, 4.0]}
    curves = charts["accuracy"][0].lines
    assert [line.name for line in curves] == ["fedoptima", "fl"]
    assert all(point.low <= point.y <= point.high for line in curves for point in line.points)

    pictures = write_pictures(charts, catalogue.figures, tmp_path / "pictures")
    assert {path.stem for path in pictures} == set(charts)
    for picture in pictures:
        ElementTree.fromstring(picture.read_text())
    pytest.importorskip("plotly")
    write_page(charts, catalogue.figures, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Fig. 8: Idle time" in page
    assert len(re.findall(r'class="plot" id="idle-chart-\d"', page)) == 4


def test_nothing_is_drawn_where_nothing_is_recorded(catalogue: Catalogue, tmp_path: Path) -> None:
    planned = queue(catalogue, catalogue.figures, Choice(seeds=1))
    figure = catalogue.figures["idle"]
    assert charts_of(catalogue, figure, planned["idle"], Records(tmp_path)) == []


def test_an_unknown_measure_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'speed': is not known; there are .*server_idle"):
        measure_of(Panel(draw="bars", measure="speed"))


def test_a_picture_has_a_bar_in_proportion_to_each_value_and_says_it() -> None:
    bars = [Bar("one", "#111111", 10.0), Bar("a < b", "#222222", 5.0, deviation=1.0)]
    picture = ElementTree.fromstring(draw("Two & more", [Chart("here", "s", "", bars=bars)]))
    widths = [
        float(each.attrib["width"])
        for each in picture.iter(f"{SVG}rect")
        if each.attrib["fill"] in ("#111111", "#222222")
    ]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    words = [each.text for each in picture.iter(f"{SVG}text")]
    assert {"Two & more", "here", "one", "a < b", "10", "5"} <= set(words)


def test_a_line_goes_up_where_its_values_do_and_stays_inside() -> None:
    points = [Point(x, y, y - 1, y + 1) for x, y in ((0.0, 1.0), (1.0, 3.0), (2.0, 9.0))]
    line = Line("up", METHODS["fl"], points, marks=True)
    picture = ElementTree.fromstring(draw("T", [Chart("c", "x", "y", [line])]))
    (path,) = picture.iter(f"{SVG}polyline")
    spots = [tuple(map(float, spot.split(","))) for spot in path.attrib["points"].split()]
    assert [x for x, _ in spots] == sorted(x for x, _ in spots)
    assert [y for _, y in spots] == sorted((y for _, y in spots), reverse=True)
    assert all(0 < x < 440 and 0 < y < 260 for x, y in spots)


def test_a_line_without_extent_can_be_drawn() -> None:
    still = Line("still", METHODS["fl"], [Point(1.0, 0.0, 0.0, 0.0)])
    ElementTree.fromstring(draw("T", [Chart("c", "x", "y", [still])]))


def test_the_interactive_form_has_the_same_values() -> None:
    chart = Chart("c", "s", "", bars=[Bar("<b>one", "#111111", 10.0, 2.0)])
    plain = interactive(chart, 0).traces[0]
    assert plain["x"] == [10.0]
    assert plain["customdata"] == ["&lt;b&gt;one"]
