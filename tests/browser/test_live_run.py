"""The page that a real server opens beside itself, while device processes train, die and fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs pip install 'fedoptima[dashboard]'")
pytest.importorskip("uvicorn", reason="needs pip install 'fedoptima[dashboard]'")
pytest.importorskip("plotly", reason="needs pip install 'fedoptima[dashboard]'")

from tests.browser.fragile import WORDS
from tests.browser.live import LivePage
from tests.browser.visits import Browsers
from tests.support.processes import Fleet, fleet

OPTIONS = ("--set", "stop.hours=1", "--set", "training.evaluate_every=0.3", "--dashboard", "0")
SLOW = ("--gflops", "0.0016")  # a round takes about half a second


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, "fedoptima") as run:
        own = f'{{ name = "tests.browser.fragile:model", switch = "{tmp_path / "switch"}" }}'
        text = re.sub("^model = .*$", f"model = {own}", run.recipe.read_text(), flags=re.M)
        run.recipe.write_text(text)
        yield run


def test_a_run_is_seen_live_with_a_killed_and_a_failed_device(
    browsers: Browsers, run: Fleet
) -> None:
    server = run.start_server(*OPTIONS)
    first, _ = (run.start_device(name, *SLOW) for name in ("pi-1", "pi-2"))
    found = re.search(r"http://127\.0\.0\.1:\d+/", server.said)
    assert found, server.said
    page = LivePage(browsers.open(found[0]))
    page.draws(2)
    page.draws(4)
    before = page.row("server")["version"]

    first.kill()
    page.shows("pi-1", "state", "away")
    page.changes("server", "version", before)  # the others go on
    run.start_device("pi-1", *SLOW)
    page.says("#notes", "pi-1 came back")
    assert not page.row("pi-1")["state"].startswith("away")

    (run.folder / "switch").touch()
    page.says("#node-table td.error", WORDS)
    page.says("#notes .serious", WORDS)
    failed = page.visit.page.locator("#node-table tr:has(+ tr > td.error) th").inner_text()
    assert failed in ("pi-1", "pi-2")
    page.says("#notes li:first-child", failed)

    page.visit.page.close()  # before it misses its server
    server.interrupt()
    assert server.ends() == 130, server.said
