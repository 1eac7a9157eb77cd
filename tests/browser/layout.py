"""What can be measured of how a page looks: nothing sticks out, no text lies on another, none is
too small to read."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import NamedTuple

from tests.browser.visits import Visit

SMALLEST = 11.0  # pixels of a letter on a phone

Point = tuple[float, float]


class Text(NamedTuple):
    """Of a plot: an axis label or title, a part of a legend."""

    text: str
    corners: tuple[Point, ...]  # in the window; a label may be turned


# Boxes of letters have some air in them, above and below above all.
_TEXTS = """() => Object.fromEntries([...document.querySelectorAll(".plot")]
  .filter((plot) => plot.getBoundingClientRect().height)
  .map((plot) => [plot.id, [...plot.querySelectorAll("svg text")]
    .filter((text) => text.textContent.trim() && text.getBoundingClientRect().width)
    .filter((text) => !text.closest(".hoverlayer"))
    .map((text) => {
      const { x, y, width, height } = text.getBBox(), m = text.getScreenCTM();
      const left = x + 0.5, right = x + width - 0.5, top = y + 2, bottom = y + height - 2;
      return [text.textContent, [[left, top], [right, top], [right, bottom], [left, bottom]]
        .map(([x, y]) => [m.a * x + m.c * y + m.e, m.b * x + m.d * y + m.f])];
    })]))"""

_SIZES = """() => {
  const found = {}, walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), owner = walker.currentNode.parentElement;
    if (text && !owner.closest("script, style, noscript") && owner.getBoundingClientRect().height)
      found[text] = parseFloat(getComputedStyle(owner).fontSize);
  }
  return found;
}"""


def assert_readable(visit: Visit) -> None:
    assert (wider := sticks_out(visit)) <= 0, f"the page is {wider} pixels too wide"
    assert not (small := small_texts(visit)), small
    for plot, texts in texts_of_plots(visit).items():
        assert texts, f"{plot}: no text"
        assert not (found := overlapping(texts)), f"{plot}: {found}"
        right = visit.width + 1
        cut = [text.text for text in texts if any(not -1 <= x <= right for x, _ in text.corners)]
        assert not cut, f"{plot}: {cut}"


def sticks_out(visit: Visit) -> float:
    """By how many pixels the page is wider than the screen (innerWidth is not the screen's: a phone
    zooms out until such a page fits)."""
    return float(visit.ask("() => document.scrollingElement.scrollWidth")) - visit.width


def small_texts(visit: Visit) -> dict[str, float]:
    return {text: size for text, size in visit.ask(_SIZES).items() if size < SMALLEST}


def texts_of_plots(visit: Visit) -> dict[str, list[Text]]:
    """By the plot's id; only of plots that are shown."""
    return {
        plot: [Text(text, tuple((x, y) for x, y in corners)) for text, corners in texts]
        for plot, texts in visit.ask(_TEXTS).items()
    }


def overlapping(texts: list[Text]) -> list[tuple[str, str]]:
    return [
        (one.text, other.text)
        for one, other in combinations(texts, 2)
        if _meet(one.corners, other.corners)
    ]


def _meet(one: tuple[Point, ...], other: tuple[Point, ...]) -> bool:
    """Two convex shapes do, unless a line along one of their sides parts them."""
    for shape in (one, other):
        for (ax, ay), (bx, by) in pairwise((*shape, shape[0])):
            across = (ay - by, bx - ax)
            shadows = [[x * across[0] + y * across[1] for x, y in each] for each in (one, other)]
            if max(shadows[0]) <= min(shadows[1]) or max(shadows[1]) <= min(shadows[0]):
                return False
    return True
