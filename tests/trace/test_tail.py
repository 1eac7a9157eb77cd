"""A tail gives every record once and in order, however files grow; and says when they shrink."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.description import SCHEMA
from fedoptima.trace.device_trace import DeviceTrace
from fedoptima.trace.record import Record
from fedoptima.trace.tail import CutBack, FileTail
from fedoptima.trace.writer import TraceWriter
from tests.verification.traces import trace_of

RECORDS = trace_of("fedoptima")[:40]
HEADER = json.dumps({"schema": SCHEMA}) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl.gz"


def lines(records: Sequence[Record]) -> list[str]:
    return [record.to_line() for record in records]


def member(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


def text_of(records: Sequence[Record]) -> str:
    return "".join(f"{line}\n" for line in lines(records))


def drained(tail: FileTail) -> list[str]:
    """All there is now."""
    found: list[str] = []
    while records := tail.read():
        found += lines(records)
    return found


# ---- a file that grows -----------------------------------------------------------------------


def test_a_file_that_is_not_there_yet_has_no_records(path: Path) -> None:
    tail = FileTail(path)
    assert tail.read() == []
    path.write_bytes(member(HEADER + text_of(RECORDS)))
    assert drained(tail) == lines(RECORDS)
    assert tail.read() == []


def test_a_file_that_grows_byte_by_byte_gives_each_record_once(path: Path) -> None:
    records = RECORDS[:12]
    parts = [HEADER, *(text_of(records[i : i + 3]) for i in range(0, len(records), 3))]
    content = b"".join(map(member, parts))
    tail, found = FileTail(path), []
    with path.open("wb", buffering=0) as file:
        for place in range(len(content)):
            file.write(content[place : place + 1])
            found += lines(tail.read())
            assert found == lines(records)[: len(found)]
    assert found == lines(records)


@pytest.mark.parametrize("size", [7, 100, 1000])
def test_pieces_of_any_size_give_the_same(path: Path, size: int) -> None:
    content = member(HEADER + text_of(RECORDS[:20])) + member(text_of(RECORDS[20:]))
    tail, found = FileTail(path), []
    with path.open("wb", buffering=0) as file:
        for place in range(0, len(content), size):
            file.write(content[place : place + size])
            found += drained(tail)
    assert found == lines(RECORDS)


def test_what_was_flushed_of_an_open_member_can_be_read(path: Path) -> None:
    """As the drivers leave it every second."""
    packer = zlib.compressobj(wbits=31)
    tail = FileTail(path)
    with path.open("wb", buffering=0) as file:
        file.write(packer.compress(HEADER.encode()) + packer.flush(zlib.Z_SYNC_FLUSH))
        assert tail.read() == []
        for record in RECORDS:
            text = text_of([record]).encode()
            file.write(packer.compress(text[:-9]) + packer.flush(zlib.Z_SYNC_FLUSH))
            assert tail.read() == []  # half a line is no record
            file.write(packer.compress(text[-9:]) + packer.flush(zlib.Z_SYNC_FLUSH))
            assert lines(tail.read()) == lines([record])


def test_a_writer_is_followed_from_mark_to_mark(path: Path) -> None:
    writer, tail = TraceWriter(path, {"recipe": {}}), FileTail(path)
    for record in RECORDS:
        writer.write(record)
        writer.mark()
        assert lines(tail.read()) == lines([record])
    writer.close()
    assert tail.read() == []


def test_letters_of_several_bytes_may_be_cut_in_two(path: Path) -> None:
    record = RECORDS[0]
    renamed = Record(record.at, NodeId("küche-日本"), record.event, record.effects)
    packer, tail, found = zlib.compressobj(wbits=31), FileTail(path), []
    with path.open("wb", buffering=0) as file:
        for byte in (HEADER + text_of([renamed])).encode():
            file.write(packer.compress(bytes([byte])) + packer.flush(zlib.Z_SYNC_FLUSH))
            found += tail.read()
    assert [record.node for record in found] == ["küche-日本"]


def test_a_long_trace_comes_in_pieces_that_are_the_same_in_the_end(path: Path) -> None:
    events = [record.event for record in RECORDS]
    many = [Record(i / 7, SERVER, events[i % len(events)], ()) for i in range(12_000)]
    path.write_bytes(member(HEADER) + member(text_of(many)))
    tail, pieces = FileTail(path), []
    while records := tail.read():
        pieces.append(len(records))
    assert len(pieces) > 1
    assert sum(pieces) == len(many)


# ---- a file that is not what it was ----------------------------------------------------------


def test_a_trace_that_was_cut_back_is_noticed(path: Path) -> None:
    path.write_bytes(member(HEADER + text_of(RECORDS)) + member(text_of(RECORDS)))
    tail = FileTail(path)
    drained(tail)
    path.write_bytes(member(HEADER + text_of(RECORDS)))
    with pytest.raises(CutBack):
        tail.read()


def test_a_trace_that_was_cut_back_and_has_grown_beyond_is_noticed(path: Path) -> None:
    """The onlooker was away while the run was killed and resumed."""
    first = member(HEADER + text_of(RECORDS[:10]))
    path.write_bytes(first + member(text_of(RECORDS[10:20])))
    tail = FileTail(path)
    drained(tail)
    path.write_bytes(first + member(text_of(RECORDS[20:])) + member(text_of(RECORDS)))
    with pytest.raises(CutBack):
        tail.read()
    assert drained(FileTail(path)) == lines([*RECORDS[:10], *RECORDS[20:], *RECORDS])


def test_one_that_was_read_only_in_part_is_noticed_too(path: Path) -> None:
    content = member(HEADER + text_of(RECORDS))
    path.write_bytes(content[: len(content) // 2])
    tail = FileTail(path)
    tail.read()
    path.write_bytes(member(HEADER + text_of(RECORDS[::-1])) + content)
    with pytest.raises(CutBack):
        tail.read()


def test_a_writer_that_resumes_at_a_mark_is_noticed(path: Path) -> None:
    writer = TraceWriter(path, {"recipe": {}})
    for record in RECORDS[:10]:
        writer.write(record)
    mark = writer.mark()
    for record in RECORDS[10:]:
        writer.write(record)
    writer.close()
    tail = FileTail(path)
    assert drained(tail) == lines(RECORDS)
    resumed = TraceWriter.resume(path, mark)
    resumed.mark()
    with pytest.raises(CutBack):
        tail.read()


def test_a_trace_that_is_gone_is_noticed(path: Path) -> None:
    path.write_bytes(member(HEADER + text_of(RECORDS)))
    tail = FileTail(path)
    drained(tail)
    path.unlink()
    with pytest.raises(CutBack):
        tail.read()


@pytest.mark.parametrize(
    "content",
    [
        b"this is no gzip file at all",
        member(HEADER + "this is no record\n"),
        member(HEADER + '[1.0,"server",[]]\n'),
        member(HEADER + '[1.0,"server",["TimerFired","a"]] and more\n'),
        member(HEADER)[:-4] + b"abcd" + member(text_of(RECORDS)),
    ],
)
def test_a_damaged_trace_is_an_error_with_its_name(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"trace\.jsonl\.gz: a damaged trace .*recipe again"):
        FileTail(path).read()


def test_a_folder_in_the_place_of_a_trace_cannot_be_read(path: Path) -> None:
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        FileTail(path).read()


# ---- a device's file -------------------------------------------------------------------------


def device_lines(device: str, records: Sequence[Record]) -> list[str]:
    return [Record(r.at, NodeId(device), r.event, r.effects).to_line() for r in records]


def test_a_device_whose_file_lost_its_torn_end_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "devices" / "a.jsonl.gz"
    DeviceTrace(path).append(device_lines("a", RECORDS[:3]))
    torn = member(text_of(RECORDS[3:]))[:-10]
    with path.open("ab") as file:
        file.write(torn)
    tail = FileTail(path)
    tail.read()
    DeviceTrace(path)  # a new server takes stock
    with pytest.raises(CutBack):
        tail.read()
