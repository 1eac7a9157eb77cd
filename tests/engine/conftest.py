"""What the tests of payloads begin with."""

from __future__ import annotations

import pytest

from tests.engine.bench import Bench, dense_model, samples


@pytest.fixture
def bench() -> Bench:
    return Bench(dense_model(), samples())
