"""Results as text, as HTML and as figures."""

from __future__ import annotations

import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fedoptima.comparison.result import Comparison
from fedoptima.comparison.runner import compare
from fedoptima.core.errors import ConfigError
from fedoptima.display.sheets import as_html, as_text
from fedoptima.experiments.result import Result
from tests.experiments.runs import FLEET, data, network, run


@pytest.fixture(scope="module")
def result() -> Result:
    return run()


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(
        methods="fedoptima,fl",
        model=network(),
        train=data(),
        test=data(48, seed=1),
        fleet=FLEET,
        training={"batch_size": 8},
        split={"at": 1},
        epochs=2.0,
    )


def test_a_result_prints_as_a_short_table_that_names_the_cut(result: Result) -> None:
    text = str(result)
    assert repr(result) == text
    first, *rows = text.splitlines()
    assert first == "run: fedoptima, seed 1 - 3 epochs done"
    assert [row.split()[0] for row in rows] == ["accuracy", "time", "split", "busy", "traffic"]
    assert result.split_after == "0"  # the first module of the Sequential
    assert "split     after 0 (block 1)" in text


def test_what_trains_the_whole_model_has_no_cut(result: Result) -> None:
    whole = run(method="fl", split=None, epochs=1.0)
    assert whole.split_after == ""
    assert "split" not in str(whole)


def test_a_notebook_shows_the_table_and_the_curve(result: Result) -> None:
    shown = result._repr_html_()
    page = ElementTree.fromstring(shown)
    assert "after 0 (block 1)" in "".join(page.itertext())
    [curve] = page.iter("{http://www.w3.org/2000/svg}polyline")
    assert len(curve.attrib["points"].split()) == len(result.curve)
    assert "http" not in shown.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched
    assert "script" not in shown


def test_names_are_text_and_not_markup(result: Result) -> None:
    wicked = replace(result, name="<script>alert(1)</script>", reason="a & b\x1b[31m")
    shown = wicked._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert "\x1b" not in str(wicked)
    assert "<b>x" not in as_html("t", [("a", "<b>x")], {"<b>x": [(0, 1)], "b": [(0, 1)]}, "<b>x")


def test_a_dry_run_has_no_curve_and_no_accuracy() -> None:
    dry = run(dry=True)
    assert "accuracy" not in str(dry)
    assert "<svg" not in dry._repr_html_()


def test_a_result_becomes_a_data_frame_and_a_figure(result: Result) -> None:
    frame = result.to_pandas()
    assert list(frame["accuracy"]) == [point.accuracy for point in result.curve]
    assert list(frame["seconds"]) == [point.seconds for point in result.curve]
    [line] = result.plot().data
    assert list(line.y) == [100 * point.accuracy for point in result.curve if point.accuracy]
    assert line.name == "fedoptima"


def test_without_accuracy_the_loss_is_drawn(result: Result) -> None:
    points = tuple(replace(point, accuracy=None) for point in result.curve)
    blind = replace(result, summary=replace(result.summary, curve=points))
    assert blind.plot().layout.yaxis.title.text == "loss"
    assert "loss over time" in blind._repr_html_()


@pytest.mark.parametrize(
    ("missing", "call", "message"),
    [
        ("plotly", "plot", r"pip install 'fedoptima\[report\]'"),
        ("pandas", "to_pandas", "pip install pandas"),
    ],
)
def test_a_missing_package_is_named_with_the_way_to_get_it(
    result: Result,
    comparison: Comparison,
    missing: str,
    call: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    for subject in (result, comparison):
        with pytest.raises(ConfigError, match=message):
            getattr(subject, call)()


def test_a_comparison_prints_as_a_table_with_a_column_for_each_method(
    comparison: Comparison,
) -> None:
    first, head, *rows = str(comparison).splitlines()
    assert repr(comparison) == str(comparison)
    assert first == "run: 2 methods, seed 1"
    assert head.split() == ["fedoptima", "fl"]
    assert any(row.split()[:2] == ["final", "accuracy,"] for row in rows)
    page = ElementTree.fromstring(comparison._repr_html_())
    assert len(list(page.iter("{http://www.w3.org/2000/svg}polyline"))) == 2
    frame = comparison.to_pandas()
    assert list(frame["method"]) == ["fedoptima", "fl"]
    assert [line.name for line in comparison.plot().data] == ["fedoptima", "fl"]


def test_columns_of_numbers_end_at_the_same_place() -> None:
    assert as_text("t", [["", "a", "bb"], ["x", "1", "22"]]).splitlines() == [
        "t",
        "     a  bb",
        "  x  1  22",
    ]
