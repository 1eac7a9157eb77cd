"""What the tests of a server share."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from fedoptima.experiments.server_setup import ServerSetup, prepare_server
from tests.support.network import tiny_recipe, until


@pytest.fixture
def setup() -> ServerSetup:
    recipe = tiny_recipe("fl", deploy={"devices": 1}, stop={"rounds": 2, "hours": 1.0})
    return prepare_server(recipe)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[str], str]:
    """Wait until a line with these words is in the log, and return it."""
    caplog.set_level(logging.INFO, "fedoptima")

    def find(words: str) -> str:
        return until(
            lambda: next((line for line in caplog.messages if words in line), None),
            f"{words!r} is in the log",
        )

    return find
