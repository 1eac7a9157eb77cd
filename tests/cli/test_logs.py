from __future__ import annotations

import logging
from pathlib import Path

from fedoptima.cli.logs import log_to_file
from tests.support.file_sizes import largest_file

LOG = logging.getLogger("fedoptima.server")


def test_lines_for_which_there_is_no_room_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "server.log"
    with log_to_file(path):
        LOG.info("one")
        with largest_file(path.stat().st_size + 9):
            LOG.info("two")
            LOG.info("three")
        LOG.info("four")
        with largest_file(0):
            LOG.info("five")  # and nothing happens at the end
    first, note, last = path.read_text().splitlines()
    assert first.endswith("one")
    assert note == "(2 lines before this one could not be written)"
    assert last.endswith("four")
