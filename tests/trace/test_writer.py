from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.core.events import TimerFired
from fedoptima.core.types import NodeId
from fedoptima.testing.world import Description, World
from fedoptima.trace.description import SCHEMA
from fedoptima.trace.reader import read_header, read_trace
from fedoptima.trace.record import Record
from fedoptima.trace.writer import Mark, TraceWriter, read_lines
from tests.support.rows import fedoptima


def record(number: int) -> Record:
    return Record(float(number), NodeId("server"), TimerFired(f"timer {number}"), [])


def write(path: Path | None, *numbers: int, header: str = "") -> TraceWriter:
    writer = TraceWriter(path, {"config": header})
    for number in numbers:
        writer.write(record(number))
    return writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl.gz"


# ---- a whole trace -----------------------------------------------------------------------------


def test_what_was_written_is_read(path: Path) -> None:
    write(path, 1, 2, 3).close()
    assert list(read_trace(path)) == [record(n) for n in (1, 2, 3)]


def test_the_header_says_where_the_trace_comes_from(path: Path) -> None:
    write(path, header="résumé").close()
    assert read_header(path) == {"schema": SCHEMA, "config": "résumé"}
    assert list(read_trace(path)) == []


def test_a_trace_is_plain_gzip(path: Path) -> None:
    writer = write(path, 1)
    writer.mark()
    writer.write(record(2))
    writer.close()
    with gzip.open(path, "rt") as file:
        assert len(file.readlines()) == 3


def test_a_whole_run_comes_back_from_disk(path: Path) -> None:
    trace = TraceWriter(path, {})
    world = World(Description(fedoptima()), trace)
    world.run()
    trace.close()
    assert list(read_trace(path)) == world.records


def test_the_same_run_gives_the_same_bytes(path: Path) -> None:
    write(path, 1, 2).close()
    first = path.read_bytes()
    write(path, 1, 2).close()
    assert path.read_bytes() == first


# ---- the digest --------------------------------------------------------------------------------


def test_the_digest_is_of_the_records_and_not_of_the_file(path: Path) -> None:
    on_disk, nowhere = write(path, 1, 2, header="a"), write(None, 1, 2, header="b")
    on_disk.mark()
    nowhere.mark()
    on_disk.write(record(3))
    nowhere.write(record(3))
    assert on_disk.digest.hexdigest() == nowhere.digest.hexdigest()
    assert on_disk.digest.records == 3
    on_disk.close()
    nowhere.close()


def test_the_digest_sees_order_and_every_record() -> None:
    digests = {
        write(None, *numbers).digest.hexdigest() for numbers in ((1, 2), (2, 1), (1,), (1, 2, 2))
    }
    assert len(digests) == 4


# ---- going on after a kill ---------------------------------------------------------------------


def interrupted(path: Path, *, lost: int) -> Mark:
    """Two records, a mark, and more records that a kill may have cut off anywhere."""
    writer = write(path, 1, 2)
    mark = writer.mark()
    for number in range(lost):
        writer.write(record(100 + number))
    writer.close()
    return mark


def test_a_resumed_trace_is_that_of_an_unbroken_run(path: Path, tmp_path: Path) -> None:
    mark = interrupted(path, lost=5)
    writer = TraceWriter.resume(path, mark)
    writer.write(record(3))
    writer.close()
    whole = write(tmp_path / "whole.gz", 1, 2, 3)
    whole.close()
    assert writer.digest.hexdigest() == whole.digest.hexdigest()
    assert list(read_trace(path)) == list(read_trace(tmp_path / "whole.gz"))


def test_a_trace_may_be_cut_at_any_byte_after_the_mark(path: Path) -> None:
    mark = interrupted(path, lost=3)
    whole = path.read_bytes()
    for size in range(mark.nbytes, len(whole)):
        path.write_bytes(whole[:size])
        found = list(read_trace(path))
        assert found[:2] == [record(1), record(2)]
        writer = TraceWriter.resume(path, mark)
        writer.write(record(3))
        writer.close()
        assert list(read_trace(path)) == [record(1), record(2), record(3)]


def test_a_mark_may_be_resumed_again_and_again(path: Path) -> None:
    mark = interrupted(path, lost=1)
    for number in (3, 4):
        writer = TraceWriter.resume(path, mark)
        writer.write(record(number))
        mark = writer.mark()
        writer.close()
    assert mark.records == 4
    assert list(read_trace(path)) == [record(n) for n in (1, 2, 3, 4)]


def test_everything_up_to_a_mark_is_on_disk_while_the_run_goes_on(path: Path) -> None:
    writer = write(path, 1, 2)
    mark = writer.mark()
    writer.write(record(3))
    assert path.stat().st_size >= mark.nbytes
    assert list(read_trace(path))[:2] == [record(1), record(2)]
    writer.close()


@pytest.mark.parametrize("missing", [1, 20])
def test_a_trace_that_is_shorter_than_its_mark_cannot_be_resumed(path: Path, missing: int) -> None:
    mark = interrupted(path, lost=0)
    path.write_bytes(path.read_bytes()[: mark.nbytes - missing])
    with pytest.raises(ConfigError, match="shorter"):
        TraceWriter.resume(path, mark)


def test_a_damaged_byte_before_the_mark_does_not_stop_a_resume(path: Path) -> None:
    mark = interrupted(path, lost=2)
    damaged = bytearray(path.read_bytes())
    damaged[mark.nbytes // 2] ^= 0xFF
    path.write_bytes(damaged)
    writer = TraceWriter.resume(path, mark)
    writer.write(record(3))
    assert writer.mark().records == 3
    writer.close()
    assert path.read_bytes()[: mark.nbytes] == damaged[: mark.nbytes]


# ---- files that are no trace -------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not gzip at all",
        gzip.compress(b"not json\n", mtime=0),
        gzip.compress(b"[1, 2]\n", mtime=0),
        gzip.compress(b'{"schema": 99}\n', mtime=0),
        gzip.compress(b"\xff\xfe\n", mtime=0),
        gzip.compress(b'{"schema": 1}\n' * 50, mtime=0)[:20],
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" + b"\xee" * 40,
    ],
    ids=["empty", "text", "no json", "a list", "schema", "no text", "cut", "damaged"],
)
def test_a_file_that_is_no_trace_is_the_users_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=path.name):
        list(read_trace(path))


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_header(tmp_path / "nowhere.gz")


def test_a_damaged_trace_is_the_users_error(path: Path) -> None:
    write(path, *range(2000)).close()
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        list(read_lines(path))
