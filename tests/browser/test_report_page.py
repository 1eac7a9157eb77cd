"""The report in a browser: it asks for nothing, draws everything, can be zoomed and be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedoptima.reporting.report import Report, report
from fedoptima.reporting.report_page import Page, render
from tests.browser.layout import assert_readable
from tests.browser.subjects import DEVICES, train
from tests.browser.visits import LAPTOP, PHONE, SCHEMES, Browsers, Visit

pytest.importorskip("plotly", reason="plotly is an extra")

DRAWN = "() => document.documentElement.dataset.drawn === 'yes'"
TIMELINE = "run-0-timeline"
# What a plot shows: how many points of each of its traces have a value.
POINTS = """() => Object.fromEntries([...document.querySelectorAll(".plot")]
  .filter((plot) => plot.getBoundingClientRect().height)
  .map((plot) => [plot.id, (plot._fullData ?? []).map((trace) =>
    [...(trace.z ?? (trace.orientation === "h" ? trace.x : trace.y))].flat()
      .filter((value) => value != null).length)]))"""
RANGE = "(id) => document.getElementById(id)._fullLayout.xaxis.range.map(Number)"


@pytest.fixture(scope="module")
def one(sixteen: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report([sixteen], out=tmp_path_factory.mktemp("one") / "report.html")


@pytest.fixture(scope="module")
def several(sixteen: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("several")
    others = [train(folder / method, method, epochs=1.0) for method in ("fl", "pipar")]
    return report([sixteen, *others], out=folder / "report.html", advice=False)


@pytest.fixture(scope="module")
def laptop(browsers: Browsers, one: Report) -> Visit:
    """The report of one run, in the hands of several tests: drawing it takes seconds."""
    return look_at(browsers, one)


@pytest.fixture(scope="module")
def phone(browsers: Browsers, one: Report) -> Visit:
    return look_at(browsers, one, size=PHONE)


@pytest.fixture(scope="module")
def comparison(browsers: Browsers, several: Report) -> Visit:
    return look_at(browsers, several)


@pytest.fixture(scope="module")
def comparison_on_a_phone(browsers: Browsers, several: Report) -> Visit:
    return look_at(browsers, several, size=PHONE)


def look_at(browsers: Browsers, made: Report, size: tuple[int, int] = LAPTOP) -> Visit:
    visit = browsers.open(made.path.resolve().as_uri(), size=size)
    visit.waits_for(DRAWN)
    return visit


def test_a_report_asks_nobody_for_anything(laptop: Visit, one: Report) -> None:
    laptop.waits_for("() => document.readyState === 'complete'")
    assert laptop.requests == [one.path.resolve().as_uri()]


@pytest.mark.parametrize("which", ["laptop", "comparison"])
def test_every_plot_has_data(which: str, request: pytest.FixtureRequest) -> None:
    drawn: dict[str, list[int]] = request.getfixturevalue(which).ask(POINTS)
    assert len(drawn) >= 9
    assert TIMELINE in drawn
    for plot, points in drawn.items():
        assert points, f"{plot} has no traces"
        assert all(points), f"{plot}: {points}"


def test_the_summary_is_there_in_words(laptop: Visit, one: Report) -> None:
    (sentences,) = one.sentences.values()
    assert sentences
    assert one.advice is not None
    shown, advice = laptop.text(".summary"), laptop.text(".advice")
    assert all(sentence in shown for sentence in sentences)
    assert all(paragraph in advice for paragraph in one.advice.paragraphs())


def test_the_timeline_has_a_lane_a_node(laptop: Visit) -> None:
    lanes = laptop.page.locator(f"#{TIMELINE} .ytick text").all_text_contents()
    assert len(lanes) == 1 + DEVICES
    assert lanes[0] == "server"


def test_a_drag_zooms_in_and_a_double_click_out_again(laptop: Visit) -> None:
    whole = laptop.ask(RANGE, TIMELINE)
    columns = laptop.ask(f"() => document.getElementById('{TIMELINE}')._fullData[0].dx")
    area = laptop.page.locator(f"#{TIMELINE} .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    mouse = laptop.page.mouse
    mouse.move(box["x"] + 0.25 * box["width"], middle)
    mouse.down()
    mouse.move(box["x"] + 0.5 * box["width"], middle, steps=4)
    mouse.up()
    laptop.waits_for(f"(whole) => ({RANGE})('{TIMELINE}')[0] > whole[0]", whole)
    left, right = laptop.ask(RANGE, TIMELINE)
    assert left == pytest.approx(0.25 * whole[1], rel=0.05)
    assert right == pytest.approx(0.5 * whole[1], rel=0.05)
    # Not only enlarged: it is drawn anew from finer pieces.
    laptop.waits_for(
        f"(before) => document.getElementById('{TIMELINE}')._fullData[0].dx < 0.3 * before", columns
    )
    mouse.dblclick(box["x"] + 0.5 * box["width"], middle)
    laptop.waits_for(f"(whole) => ({RANGE})('{TIMELINE}')[1] === whole[1]", whole)
    assert laptop.ask(RANGE, TIMELINE) == pytest.approx(whole)


def test_a_finger_scrolls_past_a_plot_and_buttons_zoom_it(phone: Visit) -> None:
    assert phone.ask(f"() => document.getElementById('{TIMELINE}')._fullLayout.dragmode") is False
    whole = phone.ask(RANGE, TIMELINE)
    phone.page.locator(f"#{TIMELINE} .modebar-btn[data-attr=zoom][data-val=in]").tap()
    phone.waits_for(f"(whole) => ({RANGE})('{TIMELINE}')[1] < whole[1]", whole)


@pytest.mark.parametrize("which", ["laptop", "phone", "comparison", "comparison_on_a_phone"])
def test_a_report_of_sixteen_devices_is_readable_in_light_and_dark(
    which: str, request: pytest.FixtureRequest
) -> None:
    visit: Visit = request.getfixturevalue(which)
    for scheme in SCHEMES:
        visit.turn(scheme)
        assert_readable(visit)
        paper = visit.ask("() => getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    visit.turn("light")


def test_another_run_can_be_chosen(comparison: Visit) -> None:
    assert comparison.page.locator("section.run:visible").count() == 1
    comparison.page.select_option("#choose-run", label="pipar")
    comparison.waits_for("() => document.querySelector('#run-2 .plot')?._fullData?.length")
    assert comparison.text("section.run:not([hidden]) h2") == "pipar"
    comparison.waits_for(DRAWN)
    assert all(all(points) for points in comparison.ask(POINTS).values())
    assert_readable(comparison)


def test_no_name_becomes_part_of_the_page(
    browsers: Browsers, several: Report, tmp_path: Path
) -> None:
    name = "</script><img src=x onerror=alert(1)>"
    views = [replace(view, label=f"{number}{name}") for number, view in enumerate(several.views)]
    path = tmp_path / "report.html"
    path.write_text(render(Page(name, name, [name]), views), encoding="utf-8")
    visit = browsers.open(path.as_uri())
    visit.waits_for(DRAWN)
    assert visit.text("h1") == name
    assert visit.page.locator("img").count() == 0
    assert len(visit.requests) == 1
