"""The live page of runs whose files a test writes, from records of a real one, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="needs pip install 'fedoptima[dashboard]'")
pytest.importorskip("uvicorn", reason="needs pip install 'fedoptima[dashboard]'")
pytest.importorskip("plotly", reason="needs pip install 'fedoptima[dashboard]'")

from fedoptima.core.effects import Note
from fedoptima.core.events import Evaluated, JobFailed, TimerFired
from fedoptima.core.jobs import FullStep
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from tests.browser.layout import assert_readable
from tests.browser.serving import LivePages, served
from tests.browser.subjects import DEVICES
from tests.browser.visits import LAPTOP, PHONE, SCHEMES
from tests.dashboard.folders import GrowingRun, write_run
from tests.dashboard.stories import story

ERROR = "OSError: <b>disk</b> full"


@pytest.fixture(scope="module")
def crowd(sixteen: Path) -> list[Record]:
    return list(read_trace(sixteen / "trace.jsonl.gz"))


@pytest.fixture
def growing(tmp_path: Path) -> GrowingRun:
    return GrowingRun(tmp_path / "run")


def pieces(records: list[Record]) -> list[list[Record]]:
    """Each with one evaluation more."""
    found: list[list[Record]] = [[]]
    for record in records:
        found[-1].append(record)
        if isinstance(record.event, Evaluated):
            found.append([])
    return found


def test_the_page_grows_with_its_run(
    live: LivePages, growing: GrowingRun, crowd: list[Record]
) -> None:
    first, *more = pieces(crowd)
    address = live.serve(growing.path)
    page = live.open(address)
    page.says("#state", "starting")
    growing.write(first)
    page.says("#state", "running")
    page.draws(1)
    before = page.row(SERVER)["version"]
    for points, piece in enumerate(more[:-1], start=2):
        growing.write(piece)
        page.draws(points)
    page.changes(SERVER, "version", before)
    growing.write(more[-1])
    growing.end()
    page.says("#state", "finished")
    page.visit.waits_for(
        "(lanes) => document.querySelector('#timeline canvas').dataset.lanes === String(lanes)",
        1 + DEVICES,
    )
    assert page.painted() > 5
    here = urlsplit(address)
    assert {urlsplit(url)[:2] for url in page.visit.requests} == {here[:2]}


def test_a_device_that_leaves_is_seen_to_leave_and_to_come_back(
    live: LivePages, growing: GrowingRun
) -> None:
    page = live.open(live.serve(growing.path))
    growing.write(record for record in story() if record.at < 1.5)
    page.shows("d0", "state", "away")
    assert "d0 left" in page.notes()[0]
    growing.write(record for record in story() if 1.5 <= record.at < 2.9)
    page.visit.waits_for("() => document.querySelectorAll('#notes li').length === 2")
    assert not page.row("d0")["state"].startswith("away")
    assert "d0 came back" in page.notes()[0]


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_failed_devices_error_is_shown_with_its_name_and_as_it_is(
    live: LivePages, growing: GrowingRun, by_itself: bool
) -> None:
    at, device = story()[99].at, NodeId("d0")
    own = Record(at, device, JobFailed(1, FullStep(0), ERROR), [])
    told = Record(at, SERVER, TimerFired("x"), [Note("device failed", device, ERROR)])
    page = live.open(live.serve(growing.path))
    growing.write([*story()[:100], own if by_itself else told])
    page.says("#node-table td.error", ERROR)
    error = page.visit.page.locator("#node-table tr:has(td.error)")
    assert error.locator("xpath=preceding-sibling::tr[1]/th").inner_text() == device
    page.says("#notes li", device)
    page.says("#notes .serious", ERROR)
    assert page.visit.page.locator("#node-table b, #notes b").count() == 0


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_a_page_of_sixteen_devices_is_readable_in_light_and_dark(
    live: LivePages, tmp_path: Path, crowd: list[Record], size: tuple[int, int]
) -> None:
    failed = Record(crowd[-1].at, NodeId("jetson-03"), JobFailed(1, FullStep(0), 9 * ERROR), [])
    page = live.open(live.serve(write_run(tmp_path / "run", [*crowd, failed])), size=size)
    page.says("#node-table td.error", ERROR)
    page.draws(1)
    page.visit.waits_for("() => document.getElementById('queue')._fullData?.length")
    for scheme in SCHEMES:
        page.visit.turn(scheme)
        assert_readable(page.visit)


def test_a_folder_of_runs_is_a_list_that_leads_to_each(live: LivePages, tmp_path: Path) -> None:
    write_run(tmp_path / "old", story())
    new = GrowingRun(tmp_path / "new & <i>strange")
    new.write(story()[:100])
    page = live.open(live.serve(tmp_path), size=PHONE)
    page.says("#run-table tbody", "running")
    page.says("#run-table tbody", "finished: done")
    assert_readable(page.visit)
    page.visit.page.get_by_role("link", name="strange").click()
    page.says("#title", new.path.name)
    page.shows("d0", "state", "")
    page.visit.page.get_by_role("link", name="All runs").click()
    page.says("#run-table tbody", "old")
    write_run(tmp_path / "late", story())  # no reload is needed
    page.says("#run-table tbody", "late")


def test_a_task_without_accuracy_shows_its_loss(live: LivePages, tmp_path: Path) -> None:
    def without_accuracy(record: Record) -> Record:
        event = record.event
        if not isinstance(event, Evaluated):
            return record
        return replace(record, event=replace(event, metrics=(("loss", 0.25), ("mae", 0.5))))

    run = GrowingRun(tmp_path / "run")
    run.write(map(without_accuracy, story()))
    run.end(curve=[{"accuracy": None, "loss": 0.25}])
    page = live.open(live.serve(tmp_path))
    page.says("#run-table tbody", "loss 0.25")
    page.visit.page.get_by_role("link", name="run", exact=True).click()
    page.says("#metrics-title", "Metrics")
    page.visit.waits_for("() => document.getElementById('metrics')._fullData?.length === 2")
    assert page.tile("loss") == ["0.25", "best 0.25"]
    assert page.tile("accuracy") is None
    assert page.visit.page.locator("#accuracy-figure").is_hidden()


def test_only_who_has_the_token_is_let_in(live: LivePages, tmp_path: Path) -> None:
    token = "0123456789abcdef"
    address = live.serve(write_run(tmp_path / "run", story()), token)
    stranger = live.open(address).visit
    assert "token" in stranger.text("body")
    stranger.page.close()  # it asks for an icon, too
    assert all("401" in complaint for complaint in stranger.complaints)  # a browser's word for it
    stranger.complaints.clear()
    friend = live.open(f"{address}?token={token}")
    friend.shows("d0", "state", "")
    friend.draws(1)
    assert token not in friend.visit.page.url  # nor in anybody's history
    friend.visit.page.reload()
    friend.shows("d0", "state", "")


def test_a_page_whose_server_is_gone_says_so(live: LivePages, tmp_path: Path) -> None:
    with served(write_run(tmp_path / "run", story())) as address:
        page = live.open(address)
        page.shows("d0", "state", "")
    page.says("#contact", "no contact")
    page.visit.page.close()
    complaints = page.visit.complaints
    assert complaints == [text for text in complaints if "ERR_" in text]
    complaints.clear()
