"""What tools change for their whole process is undone after each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _as_loud_as_before() -> Iterator[None]:
    logger = logging.getLogger("fedoptima.data")
    before = logger.level
    yield
    logger.setLevel(before)
