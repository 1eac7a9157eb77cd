"""A device's own records, as the server takes them: once, in order, on its own clock."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path

import pytest

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.events import Disconnected
from fedoptima.core.types import SERVER
from fedoptima.experiments.server_setup import ServerSetup, prepare_server
from fedoptima.runtime.disk import Disk
from fedoptima.runtime.server.device_records import DeviceRecords, RecordQuota
from fedoptima.runtime.server.session import Session
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.trace.record import Record
from tests.support.network import tiny_recipe
from tests.support.stage import NAME, Stage


@pytest.fixture
def setup() -> ServerSetup:
    return prepare_server(tiny_recipe("fl", deploy={"devices": 1}))


def line(at: float, session: int = 1) -> str:
    return Record(at, NAME, Disconnected(SERVER, session), []).to_line()


def read(session: Session) -> None:
    """The device's clock has been read: it shows what the server's does."""
    session.pong(wire.Pong(sent=0.0, device_time=0.0), 0.0)


def test_records_of_a_session_that_was_replaced_are_not_taken(
    tmp_path: Path, setup: ServerSetup
) -> None:
    """Its successor, maybe a new process, has been told how many there are, and counts on."""

    async def story() -> None:
        stage = Stage(tmp_path, setup)
        old = stage.connect("p")
        read(old)
        assert stage.node.take_records(old, 0, [line(0.0)]) == 1
        stage.node.closed(old, "replaced")
        new = stage.connect("q")
        read(new)
        assert stage.node.take_records(old, 1, [line(0.0, 7)]) == 1
        assert stage.node.take_records(new, 1, [line(0.0, 8)]) == 2
        await stage.end()

    asyncio.run(story())


def test_records_sent_twice_are_taken_once(tmp_path: Path, setup: ServerSetup) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = stage.connect()
        read(session)
        assert stage.node.take_records(session, 0, [line(0.0), line(0.0)]) == 2
        assert stage.node.take_records(session, 0, [line(0.0), line(0.0), line(0.0)]) == 3
        assert stage.node.take_records(session, 0, [line(0.0)]) == 3
        with pytest.raises(ProtocolViolation, match="from number 4 on"):
            stage.node.take_records(session, 4, [line(0.0)])
        await stage.end()

    asyncio.run(story())


def test_records_come_after_the_clock_was_read_and_never_from_the_future(
    tmp_path: Path, setup: ServerSetup
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = stage.connect()
        with pytest.raises(ProtocolViolation):
            stage.node.take_records(session, 0, [line(0.0)])
        read(session)
        stage.node.take_records(session, 0, [line(1e300)])
        trace = stage.node.records.of(NAME).trace
        assert trace.last_at <= stage.node.clock()
        await stage.end()

    asyncio.run(story())


def test_records_that_cannot_be_written_stay_with_the_device(
    tmp_path: Path, setup: ServerSetup, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, setup)
        session = stage.connect()
        read(session)
        stage.node.take_records(session, 0, [line(0.0)])
        file = tmp_path / "devices" / f"{NAME}.jsonl.gz"
        kept = file.read_bytes()
        file.unlink()
        file.mkdir()  # in the way
        assert stage.node.take_records(session, 1, [line(0.0)]) == 1
        assert "what devices record cannot be written" in caplog.text
        file.rmdir()
        file.write_bytes(kept)
        assert stage.node.take_records(session, 1, [line(0.0)]) == 2
        await stage.end()

    asyncio.run(story())


# ---- quotas --------------------------------------------------------------------------------------

LINE = len(line(0.0))
LOG = logging.getLogger("fedoptima.server")


@pytest.mark.parametrize(
    ("quota", "said"),
    [
        (RecordQuota(bytes_per_second=1e-9, burst=2 * LINE), "1e-15 MB a second"),
        (RecordQuota(in_all=1.0), "1e-06 MB in all"),
    ],
)
def test_records_beyond_a_quota_are_counted_and_left_out_and_one_note_says_so(
    tmp_path: Path,
    setup: ServerSetup,
    caplog: pytest.LogCaptureFixture,
    quota: RecordQuota,
    said: str,
) -> None:
    """137 MB came in 8 s, and all of it was kept."""

    async def story() -> None:
        stage = Stage(tmp_path, setup, record_quota=quota)
        session = stage.connect()
        read(session)
        for first in range(0, 30, 3):  # all are answered: the device need not send them again
            assert stage.node.take_records(session, first, [line(0.0)] * 3) == first + 3
        kept = stage.node.records.of(NAME)
        assert (kept.trace.records, kept.left_out) == (0, 30)
        await stage.end()

    asyncio.run(story())
    notes = [text for text in caplog.messages if "records" in text]
    assert notes == [
        next(text for text in notes if text.startswith(f"{NAME} records more than is kept")),
        f"30 records of {NAME} were left out",
    ]
    assert said in notes[0]


def test_a_device_that_was_away_for_hours_can_hand_all_its_records_over(tmp_path: Path) -> None:
    """200,000 of them, which is what a device keeps, at once."""
    records = DeviceRecords(tmp_path, RecordQuota(), LOG, Disk(tmp_path, LOG))
    assert records.of(NAME).has_room_for(200_000 * 300, now=0.0)


def test_a_device_within_the_rate_is_never_cut_off(tmp_path: Path, setup: ServerSetup) -> None:
    quota = RecordQuota(bytes_per_second=3 * LINE, burst=3 * LINE)
    kept = DeviceRecords(tmp_path, quota, LOG, Disk(tmp_path, LOG))
    for second in range(50):
        taken = kept.take(NAME, 3 * second, [line(0.0)] * 3, lambda at: at, float(second))
        assert len(taken) == 3
    assert kept.of(NAME).left_out == 0
    assert kept.take(NAME, 150, [line(0.0)] * 3, lambda at: at, 49.5) == []
    assert kept.of(NAME).left_out == 3


def test_records_sent_again_after_a_read_error_are_not_taken_twice(tmp_path: Path) -> None:
    def opened() -> DeviceRecords:
        return DeviceRecords(tmp_path, RecordQuota(), LOG, Disk(tmp_path, LOG))

    assert len(opened().take(NAME, 0, [line(0.0)] * 3, lambda at: at, 0.0)) == 3
    again, sent = opened(), [line(0.0)] * 4

    def failing(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", failing)
        assert again.taken(NAME) == 0
        assert again.take(NAME, 0, sent, lambda at: at, 0.0) == []
    assert len(again.take(NAME, 0, sent, lambda at: at, 0.0)) == 1
    assert again.taken(NAME) == opened().taken(NAME) == 4
