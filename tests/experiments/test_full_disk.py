"""A whole run over the network in this process, while no file of it may grow."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from fedoptima.analysis.curve import CourseAccount, Point
from fedoptima.core.events import DiskFailing, DiskWorks
from fedoptima.experiments.disk_sign import DiskSign
from fedoptima.experiments.server_metrics import ServerMetrics
from fedoptima.runtime.disk import Disk
from fedoptima.verification.replay import replay
from tests.support.file_sizes import largest_file
from tests.support.network import NAMES, Server, start_device, tiny_recipe, until

LOG = logging.getLogger("fedoptima.server")


def test_a_run_that_is_over_waits_for_room_for_its_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="fedoptima.server")
    with Server(tiny_recipe("fl"), tmp_path / "run") as server:
        with largest_file(0):  # from the first record to the last
            devices = [start_device(name, server.address, tmp_path) for name in NAMES]
            until(lambda: "waits for room for its result" in caplog.text, "the run is over")
            assert [str(device.answer()) for device in devices] == ["2 epochs done"] * 3
            assert not server.directory.over
        result = server.result()
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert kept["weights_digest"] == result.weights_digest
    assert result.accuracy is not None, "the curve is whole, and no record is"
    assert caplog.text.count("training continues, and writing is tried again: make room") == 4, (
        "each once"
    )
    assert not (tmp_path / "run" / "disk_failing").exists()
    found = replay(tmp_path / "run")
    assert found.difference is None
    (gap,) = found.gaps
    assert gap.records == result.events
    assert not gap.verified_after


def test_metrics_are_written_anew_when_there_is_room(tmp_path: Path) -> None:
    course, path = CourseAccount(), tmp_path / "metrics.csv"
    said: list[object] = []
    metrics = ServerMetrics(path, course, Disk(tmp_path, LOG, said.append))
    metrics.start()
    course.points.append(Point(1.0, 1.0, 1, 8, 8, 0.5, 0.1))
    with largest_file(10):
        metrics.update()
        metrics.retry()
        course.points.append(Point(2.0, 2.0, 2, 16, 16, 0.6, 0.1))
        metrics.update()
    metrics.retry()
    assert len(path.read_text().splitlines()) == 3
    assert [type(each) for each in said] == [DiskFailing, DiskWorks]


def test_a_sign_of_a_full_disk_needs_no_room(tmp_path: Path) -> None:
    sign = DiskSign(tmp_path / "disk_failing")
    with largest_file(0):
        sign.show(DiskFailing("the trace cannot be written"))
    assert (tmp_path / "disk_failing").read_text() == ""
    sign.refresh()
    sign.show(DiskWorks())
    sign.refresh()
    assert not (tmp_path / "disk_failing").exists()
