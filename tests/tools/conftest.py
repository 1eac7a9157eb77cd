"""What tools change for their whole process is undone after each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

_MADE_QUIET = [logging.getLogger(f"fedoptima.{name}") for name in ("data", "run")]


@pytest.fixture(autouse=True)
def _as_loud_as_before() -> Iterator[None]:
    before = [logger.level for logger in _MADE_QUIET]
    yield
    for logger, level in zip(_MADE_QUIET, before, strict=True):
        logger.setLevel(level)
