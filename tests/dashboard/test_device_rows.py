"""What the page shows of each device, and of a crowd of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedoptima.core.effects import Note
from fedoptima.core.events import JobFailed, TimerFired
from fedoptima.core.jobs import FullStep
from fedoptima.core.types import SERVER, NodeId
from fedoptima.dashboard.reader import Snapshot
from fedoptima.dashboard.stream import MOST_ROWS, Wish, to_json
from fedoptima.trace.record import Record
from tests.dashboard.folders import GrowingRun, write_run
from tests.dashboard.looks import look, reader, row
from tests.dashboard.stories import story

D0 = NodeId("d0")


def test_a_device_is_shown_as_away_and_as_back_again(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    reading = reader(run.path)
    run.write(record for record in story() if record.at < 1.5)
    assert row(reading, "d0")["state"].startswith("away for")
    assert not row(reading, "d0")["well"]
    run.write(record for record in story() if 1.5 <= record.at < 2.9)
    assert row(reading, "d0")["well"]
    kinds = [note["kind"] for note in look(reading).sections["notes"]]  # type: ignore[attr-defined]
    assert kinds == ["came back", "left"]


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_failed_devices_error_is_in_its_row_and_among_the_notes(
    tmp_path: Path, by_itself: bool
) -> None:
    at = story()[99].at
    failed = JobFailed(1, FullStep(0), "disk full")
    told = Record(at, SERVER, TimerFired("x"), [Note("device failed", D0, "disk full")])
    own = Record(at, D0, failed, [])
    run = GrowingRun(tmp_path / "run")
    run.write([*story()[:100], own if by_itself else told])
    reading = reader(run.path)
    assert row(reading, "d0")["error"] == "disk full"
    note = look(reading).sections["notes"][0]  # type: ignore[index]
    assert (note["node"], note["text"], note["serious"]) == ("d0", "disk full", True)


def test_a_message_is_small_and_has_every_device_of_sixteen(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", crowd(16))
    for span in (0, 120, 600):
        shown = Wish(span=span).cut(look(reader(run), span))
        assert len(shown["rows"]["shown"]) == len(shown["lanes"]["lanes"]) == 17  # type: ignore[index]
        assert len(to_json(shown)) < 50_000


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A hundred devices, of which the last one fails."""
    last = Record(story()[-1].at, NodeId("d99"), JobFailed(1, FullStep(0), "disk full"), [])
    run = write_run(tmp_path_factory.mktemp("crowd") / "run", [*crowd(100), last])
    return look(reader(run), 120)


def rows_of(wish: Wish, snapshot: Snapshot) -> dict[str, Any]:
    rows: dict[str, Any] = wish.cut(snapshot)["rows"]  # type: ignore[assignment]
    return rows


def test_of_a_crowd_the_first_rows_are_shown_those_in_trouble_on_top(crowded: Snapshot) -> None:
    rows = rows_of(Wish(), crowded)
    names = [row["name"] for row in rows["shown"]]
    assert names[:4] == [SERVER, "d99", "d0", "d1"]
    assert len(names) == 1 + MOST_ROWS
    assert (rows["all"], rows["matching"], rows["not_well"]) == (100, 100, 1)
    assert len(to_json(Wish().cut(crowded))) < 50_000


def test_a_filter_finds_devices_by_name_and_state(crowded: Snapshot) -> None:
    def names(text: str) -> list[str]:
        return [row["name"] for row in rows_of(Wish(text), crowded)["shown"]]

    assert names("D9") == [SERVER, "d9", *(f"d{number}" for number in range(90, 100))]
    assert names("failed d") == [SERVER, "d99"]
    assert names("nobody") == [SERVER]


def crowd(count: int) -> list[Record]:
    """The story told by many: every device's records again under other names."""
    records = []
    for record in story():
        if record.node == SERVER:
            records.append(record)
        else:
            number = int(record.node[1:])
            for name in range(number, count, 3):
                records.append(Record(record.at, NodeId(f"d{name}"), record.event, record.effects))
    return records
