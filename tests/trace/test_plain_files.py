"""Compressed files that stand for far more than a trace would, and files that are links."""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.core.events import JobFailed
from fedoptima.core.jobs import FullStep
from fedoptima.core.text import MOST_TEXT
from fedoptima.core.types import NodeId
from fedoptima.dashboard.folder import RunFolder
from fedoptima.trace.device_trace import DeviceTrace
from fedoptima.trace.plain_files import LONGEST_LINE, open_plain, refuse_links
from fedoptima.trace.reader import read_description, read_header, read_trace
from fedoptima.trace.record import Record
from fedoptima.trace.run_folder import write_whole
from fedoptima.trace.tail import DamagedFile, FileTail
from fedoptima.trace.writer import TraceWriter
from tests.dashboard.folders import write_run
from tests.dashboard.stories import METHODS, story

BOMB = "no trace is like that, so it is not decompressed any further"


def compressed(pieces: Iterator[bytes]) -> bytes:
    bomb = zlib.compressobj(9, wbits=31)
    return b"".join(map(bomb.compress, pieces)) + bomb.flush()


def endless_line() -> bytes:
    return compressed(bytes(1 << 20) for _ in range(2 + LONGEST_LINE // (1 << 20)))


def same_record_for_ever() -> bytes:
    """Of the greatest length that a device's may have, so that a test has few to read."""
    record = Record(1.0, NodeId("d0"), JobFailed(1, FullStep(0), "x" * MOST_TEXT), ())
    lines = (record.to_line() + "\n").encode() * 256
    return compressed(lines for _ in range(40))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", story(), networked=True)


@pytest.mark.parametrize("bomb", [endless_line, same_record_for_ever])
def test_a_bomb_is_named_and_not_read_to_its_end(run: Path, bomb: Callable[[], bytes]) -> None:
    trace, content = run / "trace.jsonl.gz", bomb()
    assert len(content) < 200_000
    with trace.open("ab") as file:
        file.write(content)
    with pytest.raises(ConfigError, match=rf"trace.jsonl.gz: a damaged trace .*{BOMB}"):
        list(read_trace(trace))
    tail = FileTail(trace)
    with pytest.raises(DamagedFile, match=BOMB):
        list(iter(tail.read, []))


def test_a_header_that_is_a_bomb_is_not_read_to_its_end(run: Path) -> None:
    trace = run / "trace.jsonl.gz"
    trace.write_bytes(endless_line())
    with pytest.raises(ConfigError, match=rf"not a trace \(a line is longer than .*{BOMB}"):
        read_description(trace)
    trace.write_bytes(gzip.compress(b"[" * 100_000 + b"\n"))
    with pytest.raises(ConfigError, match="not a trace"):  # and no overflow of the stack
        read_header(trace)
    (run / "config.json").write_text("[" * 100_000)
    assert RunFolder("run", run).description() is None


def test_a_devices_file_that_is_a_bomb_is_set_aside_when_a_server_resumes(run: Path) -> None:
    path = run / "devices" / "d0.jsonl.gz"
    with path.open("ab") as file:
        file.write(same_record_for_ever())
    assert len(list(read_trace(run / "trace.jsonl.gz"))) >= len(story())  # up to there
    kept = DeviceTrace(path)
    assert kept.records == 0
    assert path.with_name("d0.jsonl.gz.damaged").exists()


@pytest.mark.parametrize("method", METHODS)
def test_traces_are_far_from_being_taken_for_bombs(tmp_path: Path, method: str) -> None:
    path = write_run(tmp_path / "run", story(method)) / "trace.jsonl.gz"
    with gzip.open(path) as file:
        assert len(file.read()) < 25 * path.stat().st_size


# ---- links -------------------------------------------------------------------------------------


def linked(path: Path, target: Path) -> Path:
    """What was there is moved to ``target``."""
    if path.exists():
        shutil.move(path, target)
    path.symlink_to(target)
    return target


def test_links_in_a_folder_that_is_read_are_not_followed(run: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    linked(run / "summary.json", away)
    assert RunFolder("run", run).summary() == {}
    linked(run / "config.json", tmp_path / "config")
    assert RunFolder("run", run).description() is None
    linked(run / "devices" / "d0.jsonl.gz", tmp_path / "d0")
    left = list(read_trace(run / "trace.jsonl.gz"))
    assert "d0" not in {record.node for record in left}
    with pytest.raises(DamagedFile, match="is a link, and links in a run's folder are not"):
        FileTail(run / "devices" / "d0.jsonl.gz").read()
    with pytest.raises(ConfigError, match="is a link"):
        DeviceTrace(run / "devices" / "d0.jsonl.gz").append(["[]"])
    linked(run / "devices", tmp_path / "devices")
    with pytest.raises(ConfigError, match=r"devices: is a link, and links in a run's folder are"):
        list(read_trace(run / "trace.jsonl.gz"))
    linked(run / "trace.jsonl.gz", tmp_path / "trace")
    with pytest.raises(ConfigError, match="is a link"):
        read_header(run / "trace.jsonl.gz")


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / "summary.tmp").symlink_to(mine)
    with pytest.raises(OSError, match="is a link"):
        write_whole(tmp_path / "summary.json", "{}")
    (tmp_path / "trace.jsonl.gz").symlink_to(mine)
    with pytest.raises(OSError, match="is a link"):
        TraceWriter(tmp_path / "trace.jsonl.gz", {})
    with pytest.raises(OSError, match="is a link"):
        open_plain(tmp_path / "trace.jsonl.gz", "a")
    assert mine.read_text() == "precious"
    with open_plain(tmp_path / "new.json", "w") as file:
        json.dump({}, file)
    with pytest.raises(ConfigError, match=r"(summary.tmp|trace.jsonl.gz): is a link.*remove it"):
        refuse_links(tmp_path)
