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
    print(round(__import__("time").time()%1000,1), 'server = run.start_server(*OPTIONS)')
    first, _ = (run.start_device(name, *SLOW) for name in ("pi-1", "pi-2"))
    print(round(__import__("time").time()%1000,1), 'first, _ = (run.start_device(name, *SLOW) for name')
    found = re.search(r"http://127\.0\.0\.1:\d+/", server.said)
    print(round(__import__("time").time()%1000,1), 'found = re.search(r"http://127\\.0\\.0\\.1:\\d+/", ser')
    assert found, server.said
    page = LivePage(browsers.open(found[0]))
    print(round(__import__("time").time()%1000,1), 'page = LivePage(browsers.open(found[0]))')
    page.draws(2)
    print(round(__import__("time").time()%1000,1), 'page.draws(2)')
    page.draws(4)
    print(round(__import__("time").time()%1000,1), 'page.draws(4)')
    before = page.row("server")["version"]
    print(round(__import__("time").time()%1000,1), 'before = page.row("server")["version"]')

    first.kill()
    print(round(__import__("time").time()%1000,1), 'first.kill()')
    page.shows("pi-1", "state", "away")
    print(round(__import__("time").time()%1000,1), 'page.shows("pi-1", "state", "away")')
    page.changes("server", "version", before)  # the others go on
    print(round(__import__("time").time()%1000,1), 'page.changes("server", "version", before)  # the o')
    run.start_device("pi-1", *SLOW)
    print(round(__import__("time").time()%1000,1), 'run.start_device("pi-1", *SLOW)')
    page.says("#notes", "pi-1 came back")
    print(round(__import__("time").time()%1000,1), 'page.says("#notes", "pi-1 came back")')
    assert not page.row("pi-1")["state"].startswith("away")

    (run.folder / "switch").touch()
    print(round(__import__("time").time()%1000,1), '(run.folder / "switch").touch()')
    page.says("#node-table td.error", WORDS)
    print(round(__import__("time").time()%1000,1), 'page.says("#node-table td.error", WORDS)')
    page.says("#notes .serious", WORDS)
    print(round(__import__("time").time()%1000,1), 'page.says("#notes .serious", WORDS)')
    failed = page.visit.page.locator("#node-table tr:has(+ tr > td.error) th").inner_text()
    print(round(__import__("time").time()%1000,1), 'failed = page.visit.page.locator("#node-table tr:h')
    assert failed in ("pi-1", "pi-2")
    page.says("#notes li:first-child", failed)
    print(round(__import__("time").time()%1000,1), 'page.says("#notes li:first-child", failed)')

    page.visit.page.close()  # before it misses its server
    print(round(__import__("time").time()%1000,1), 'page.visit.page.close()  # before it misses its se')
    server.interrupt()
    print(round(__import__("time").time()%1000,1), 'server.interrupt()')
    assert server.ends() == 130, server.said
