"""What is said of a disk, by several threads."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from threading import Thread

import pytest

from fedoptima.core.events import DiskFailing, DiskWorks
from fedoptima.runtime.disk import Disk

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_what_is_said_last_is_so_when_a_write_fails_while_another_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("fedoptima.test_disk")
    said: list[DiskFailing | DiskWorks] = []
    disk = Disk(tmp_path, log, said.append)
    other = Thread(target=disk.failed, args=("a checkpoint", FULL))

    def meanwhile(*_: object) -> None:
        other.start()
        other.join(0.05)  # it has to wait, and must not get in between

    monkeypatch.setattr(log, "warning", meanwhile)
    disk.failed("the trace", FULL)
    disk.worked("the trace")
    other.join()
    assert [type(each) for each in said] == [DiskFailing, DiskWorks, DiskFailing]
    assert disk.trouble == said[-1]
