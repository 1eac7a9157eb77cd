"""Disks that fill up and have room again, as file systems of their own, under the real commands."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from fedoptima.core.events import DiskFailing, DiskWorks, Gap
from fedoptima.core.types import SERVER
from fedoptima.trace.reader import read_trace
from fedoptima.verification.replay import replay
from tests.support.network import until
from tests.support.processes import Fleet, fleet, free_port
from tests.support.small_disk import small_disk

FOR_EVER = ("--set", "stop.hours=1")  # until the test has seen enough
ROUND = ("--gflops", "0.01")


def measured(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        lines = page.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def checkpoints(run: Fleet) -> int:
    return len(list((run.run / "checkpoints").glob("[0-9]*")))


def test_the_disk_is_full(tmp_path: Path) -> None:
    port = free_port()
    with small_disk(tmp_path / "small") as disk, fleet(tmp_path, "fedoptima") as run:
        run.run = disk.path / "run"
        server = run.start_server(*FOR_EVER, "--metrics-port", str(port))
        devices = [run.start_device(name, *ROUND) for name in ("pi-1", "pi-2")]
        until(lambda: checkpoints(run), "there is a checkpoint")
        disk.fill()
        server.says("cannot be written")
        trained = 'fedoptima_samples_total{side="server"}'
        before = measured(port)[trained]
        until(lambda: measured(port)[trained] > before + 100, "training goes on")
        assert measured(port)['fedoptima_disk_failing{node="server"}'] == 1
        assert (run.run / "disk_failing").exists(), "for the page, which reads files"
        disk.clear()
        server.says("everything is written again")
        until(lambda: measured(port)['fedoptima_disk_failing{node="server"}'] == 0, "all is well")
        assert not (run.run / "disk_failing").exists()
        before = measured(port)[trained]
        until(lambda: measured(port)[trained] > before + 100, "training goes on")
        server.interrupt()
        assert server.ends() == 130, server.said
        assert [device.ends() for device in devices] == [0, 0]
        assert server.said.count("cannot be written") == 1
        assert "Traceback" not in server.said
        records = [r for r in read_trace(run.run / "trace.jsonl.gz") if r.node == SERVER]
        again = replay(run.run)
    kinds = [type(record.event) for record in records]
    assert kinds.count(Gap) == 1
    assert DiskWorks in kinds[kinds.index(Gap) :]
    assert len(kinds) - kinds.index(Gap) > 20, "what came after it is there"
    assert again.difference is None, again.difference
    (gap,) = again.gaps
    assert gap.verified_after
    assert gap.records > 20


def test_a_devices_state_disk_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "states") as disk, fleet(tmp_path, "fedoptima") as run:
        disk.fill()  # before it has begun
        server = run.start_server("--set", "stop.epochs=4")
        devices = [run.start_device(name, *ROUND) for name in ("pi-1", "pi-2")]
        devices[0].says("cannot be written")
        assert server.ends() == 0, server.said
        assert [device.ends() for device in devices] == [0, 0]
        assert devices[0].said.count("cannot be written") == 1
        events = [record.event for record in run.records_of("pi-1")]
        assert replay(run.run).difference is None
    assert [event for event in events if isinstance(event, DiskFailing)]
