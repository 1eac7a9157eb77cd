"""One trace of many files: the server's and those of its devices, by time."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.device_trace import DeviceTrace
from fedoptima.trace.reader import read_trace
from fedoptima.trace.writer import TraceWriter
from tests.trace.device_lines import lines, record, times


def run(tmp_path: Path, **devices: Sequence[float]) -> Path:
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "trace.jsonl.gz"
    writer = TraceWriter(path, {})
    for at in devices.pop("server"):
        writer.write(record(at, SERVER))
    writer.close()
    for name, own in devices.items():
        trace = DeviceTrace(tmp_path / "devices" / f"{name}.jsonl.gz")
        trace.append(lines(*own, node=NodeId(name)))
    return path


def test_a_run_is_read_by_time_and_the_server_goes_first(tmp_path: Path) -> None:
    path = run(tmp_path, server=[1.0, 2.0, 2.0, 5.0], b=[0.5, 2.0], a=[2.0, 6.0])
    assert [(r.at, r.node) for r in read_trace(path)] == [
        (0.5, "b"),
        (1.0, SERVER),
        (2.0, SERVER),
        (2.0, SERVER),
        (2.0, "a"),
        (2.0, "b"),
        (5.0, SERVER),
        (6.0, "a"),
    ]


def damage(tmp_path: Path, device: str, lines: bytes) -> None:
    with gzip.open(tmp_path / "devices" / f"{device}.jsonl.gz", "ab") as file:
        file.write(lines)


def test_a_bad_part_of_a_devices_file_is_named_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = run(tmp_path, server=[1.0, 2.0], a=[1.5], b=[3.0])
    damage(tmp_path, "a", b'[1.6,"a",["JobDone","of","nothing"]]\n' + b"no record\n" * 2)
    damage(tmp_path, "a", f"{record(1.7, NodeId('a')).to_line()}\n".encode())
    assert times(list(read_trace(path))) == [1.0, 1.5, 1.7, 2.0, 3.0]
    assert "a.jsonl.gz: records that cannot be read are left out (line 3: " in caplog.text
    assert "and 2 more)" in caplog.text


def test_without_gaps_a_device_is_read_up_to_its_first_bad_part(tmp_path: Path) -> None:
    """A replay can do without a device's last records, but not without some in between."""
    path = run(tmp_path, server=[1.0, 2.0], a=[1.5])
    damage(tmp_path, "a", f"no record\n{record(1.7, NodeId('a')).to_line()}\n".encode())
    assert times(list(read_trace(path, gaps=False))) == [1.0, 1.5, 2.0]


@pytest.mark.parametrize(
    "content", [b"no gzip at all", gzip.compress(b'{"schema": 99}\n', mtime=0), b""]
)
def test_a_devices_file_that_cannot_be_read_at_all_is_named_and_skipped(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = run(tmp_path, server=[1.0, 2.0], a=[1.5])
    (tmp_path / "devices" / "a.jsonl.gz").write_bytes(content)
    assert times(list(read_trace(path))) == [1.0, 2.0]
    assert "the rest of this file is left out" in caplog.text


def test_a_run_is_read_lazily(tmp_path: Path) -> None:
    path = run(tmp_path, server=[1.0, 2.0], a=[1.5])
    with gzip.open(path, "ab") as file:
        file.write(b"no record\n" * 3)
    records = read_trace(path)
    assert next(records).at == 1.0
    with pytest.raises(ConfigError, match=r"trace\.jsonl\.gz: line 4"):
        list(records)


def test_a_device_whose_last_record_is_torn_does_not_hide_the_others(tmp_path: Path) -> None:
    path = run(tmp_path, server=[1.0, 4.0], a=[2.0], b=[3.0])
    torn = tmp_path / "devices" / "a.jsonl.gz"
    torn.write_bytes(torn.read_bytes()[:-3])
    assert [r.node for r in read_trace(path) if r.node != "a"] == [SERVER, "b", SERVER]
