"""What somebody reads on the live page."""

from __future__ import annotations

from tests.browser.visits import Visit

ACCURACY_POINTS = "() => document.getElementById('accuracy')._fullData?.[0]?.y.length ?? 0"
# A node's row as {title of a column: text}; null while there is none.
_ROW = """(name) => {
  const table = document.getElementById("node-table");
  const titles = [...table.tHead.rows[0]?.cells ?? []].map((cell) => cell.textContent);
  const row = [...table.tBodies[0].rows].find((row) => row.cells[0].textContent === name);
  const texts = row && [...row.cells].map((cell) => cell.textContent);
  return row ? Object.fromEntries(titles.map((title, index) => [title, texts[index]])) : null;
}"""
_TILE = """(label) => {
  const tile = [...document.querySelectorAll("#tiles div")]
    .find((tile) => tile.querySelector("dt").textContent === label);
  return tile && [...tile.querySelectorAll("dd > *")].map((part) => part.textContent);
}"""


class LivePage:
    def __init__(self, visit: Visit) -> None:
        self.visit = visit

    def says(self, selector: str, words: str) -> None:
        """Sooner or later."""
        self.visit.waits_for(
            "([where, words]) => document.querySelector(where)?.textContent.includes(words)",
            [selector, words],
        )

    def draws(self, points: int) -> None:
        """Of the accuracy curve, at least."""
        self.visit.waits_for(f"(least) => ({ACCURACY_POINTS})() >= least", points)

    def row(self, name: str) -> dict[str, str]:
        row: dict[str, str] = self.visit.ask(_ROW, name)
        return row

    def shows(self, name: str, column: str, words: str) -> None:
        """A cell of a node's row begins so, sooner or later."""
        self.visit.waits_for(
            f"([name, column, words]) => ({_ROW})(name)?.[column].startsWith(words)",
            [name, column, words],
        )

    def changes(self, name: str, column: str, before: str) -> None:
        self.visit.waits_for(
            f"([name, column, before]) => (({_ROW})(name)?.[column] ?? before) !== before",
            [name, column, before],
        )

    def tile(self, label: str) -> list[str] | None:
        tile: list[str] | None = self.visit.ask(_TILE, label)
        return tile

    def notes(self) -> list[str]:
        return self.visit.page.locator("#notes li").all_inner_texts()

    def painted(self) -> int:
        """Different colours on the timeline."""
        colours: int = self.visit.ask(
            """() => {
              const canvas = document.querySelector("#timeline canvas");
              const { width, height } = canvas, context = canvas.getContext("2d");
              const pixels = context.getImageData(0, 0, width, height).data.buffer;
              return new Set(new Uint32Array(pixels)).size;
            }"""
        )
        return colours
