from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.applications import Starlette

from fedoptima.dashboard.app import dashboard
from fedoptima.dashboard.folder import RunFolder, Runs
from fedoptima.dashboard.reader import RunReader
from fedoptima.dashboard.stream import Wish
from fedoptima.dashboard.watch import Cadence, Watch, Watches
from fedoptima.trace.writer import TraceWriter
from tests.dashboard.browser import listening
from tests.dashboard.folders import GrowingRun, write_run
from tests.dashboard.stories import story

QUICK = Cadence(every=0.01, share=1.0)


def app_of(path: Path) -> Starlette:
    return dashboard(Runs.at(path), cadence=QUICK)


def played(scene: Callable[[], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with asyncio.timeout(120):
            await scene()

    asyncio.run(all_of_it())


def test_the_page_follows_a_run_that_goes_on(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")

    async def scene() -> None:
        async with listening(app_of(tmp_path), "run=run&span=120") as page:
            first = await page.next()
            assert set(first) == {
                *("run", "now", "curve", "speed", "queue", "rows", "notes", "lanes")
            }
            assert first["now"]["state"] == "starting"
            run.write(story()[:100])
            await page.until("now", "records", 100)
            assert [row["name"] for row in page.state["rows"]["shown"]] == [
                "server",
                "d0",
                "d1",
                "d2",
            ]
            run.write(story()[100:])
            await page.until("now", "records", len(story()))
            assert len(page.state["lanes"]["lanes"]) == 4
            run.end()
            await page.until("now", "state", "finished")

    played(scene)


def test_what_has_not_changed_is_not_sent_again(tmp_path: Path) -> None:
    write_run(tmp_path / "run", story())

    async def scene() -> None:
        async with listening(app_of(tmp_path), "run=run") as page:
            await page.until("now", "records", len(story()))
            while await page.next():
                pass
            assert await page.next() == {}
            assert page.sizes[-1] < 20

    played(scene)


def test_a_device_that_leaves_and_comes_back_is_seen(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    run.write(record for record in story() if record.at < 1.5)

    async def scene() -> None:
        async with listening(app_of(tmp_path), "run=run") as page:
            await page.until("rows", "not_well", 1)
            run.write(record for record in story() if 1.5 <= record.at < 2.9)
            await page.until("rows", "not_well", 0)

    played(scene)


def test_the_page_goes_on_after_a_run_was_resumed(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    path = run.path / "trace.jsonl.gz"
    writer = TraceWriter(path, {})
    for record in story()[:150]:
        writer.write(record)
    mark = writer.mark()
    for record in story()[150:]:
        writer.write(record)
    writer.close()

    async def scene() -> None:
        async with listening(app_of(tmp_path), "run=run") as page:
            await page.until("now", "records", len(story()))
            resumed = TraceWriter.resume(path, mark)
            await page.until("now", "records", 150)
            for record in story()[150:]:
                resumed.write(record)
            resumed.close()
            await page.until("now", "records", len(story()))

    played(scene)


def test_every_page_sees_what_it_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path / "run", story())
    app = app_of(tmp_path)

    async def scene() -> None:
        async with (
            listening(app, "run=run&span=120&filter=d1") as one,
            listening(app, "run=run&span=0") as other,
        ):
            await one.until("now", "records", len(story()))
            await other.until("now", "records", len(story()))
            assert [row["name"] for row in one.state["rows"]["shown"]] == ["server", "d1"]
            assert len(other.state["rows"]["shown"]) == 4
            assert len(one.state["lanes"]["lanes"]) == 2

    played(scene)


def test_all_pages_of_a_run_share_one_watch_and_it_ends_after_the_last(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", story())
    runs, folder = Runs.at(run), RunFolder("run", run)

    async def scene() -> None:
        watches = Watches(runs, Cadence(every=0.01, linger=0.05))
        watch = watches.of(folder)
        assert watch is not None
        assert watches.of(folder) is watch
        stream = watch.snapshots(120)
        await anext(stream)
        assert watch.has_viewers
        await stream.aclose()
        assert not watch.has_viewers
        await watch.ended()
        assert watches.of(folder) is not watch

    played(scene)


def test_a_page_that_goes_is_no_longer_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", story())
    app = app_of(tmp_path)

    async def scene() -> None:
        async with listening(app, "run=run") as page:
            await page.next()
            watch = app.state.watches.of(RunFolder("run", run))
            assert watch.has_viewers
        assert not watch.has_viewers

    played(scene)


def test_a_watch_that_breaks_ends_its_streams(tmp_path: Path) -> None:
    class Broken(RunReader):
        def look(self, spans: set[int]) -> object:  # type: ignore[override]
            raise RuntimeError("a bug")

    async def scene() -> None:
        runs = Runs(tmp_path, single=True)
        watch = Watch(Broken(runs, RunFolder("run", tmp_path)), QUICK)
        assert [snapshot async for snapshot in watch.snapshots(0)] == []

    played(scene)


def test_of_a_run_that_is_over_the_whole_is_shown_unless_something_else_is_asked_for() -> None:
    assert Wish.of({}, over=True).span == 0
    assert Wish.of({}, over=False).span == 120
    assert Wish.of({"span": "600"}, over=True).span == 600
    assert Wish.of({"span": "-1e9"}, over=False).span == 120
