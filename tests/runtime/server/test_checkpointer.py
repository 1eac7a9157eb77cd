"""A server that is stopped while there is no room for its last checkpoint."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import pytest

from fedoptima.experiments.server_setup import prepare_server
from tests.support.file_sizes import largest_file
from tests.support.network import tiny_recipe
from tests.support.stage import Stage


@pytest.mark.parametrize("earlier", [False, True])
def test_a_last_checkpoint_that_could_not_be_written_is_said_with_what_is_lost(
    tmp_path: Path, earlier: bool, caplog: pytest.LogCaptureFixture
) -> None:
    saved = tmp_path / "checkpoints"

    async def story() -> str:
        setup = prepare_server(tiny_recipe("fl", deploy={"devices": 1}))
        stage = Stage(tmp_path, setup)
        await stage.begin()
        assert stage.checkpointer.say_what_is_lost(saved) == ""
        if earlier:
            (saved / "000000000001").mkdir(parents=True)
            then = time.time() - 1000
            os.utime(saved / "000000000001", (then, then))
        with largest_file(0):
            stage.node.interrupt()
            await stage.end()
        return stage.checkpointer.say_what_is_lost(saved)

    way_on = r"continues from the one of 10\d\d s ago" if earlier else "starts over"
    lost = rf"its last checkpoint could not be written \(.+\): resumed, the run {way_on}"
    assert re.fullmatch(f"; {lost}", asyncio.run(story()))
    assert re.fullmatch(lost, caplog.messages[-1])
