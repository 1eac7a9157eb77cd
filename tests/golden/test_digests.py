"""What the methods do, event by event, is what it was: see tools/golden.py."""

from __future__ import annotations

import json

import pytest

from tools.golden import CASES, STORED, digest

stored = json.loads(STORED.read_text())


def test_every_case_has_a_stored_digest() -> None:
    assert list(stored) == list(CASES)


@pytest.mark.parametrize("weather", ["calm", "churn"])
@pytest.mark.parametrize("case", CASES)
def test_the_trace_of_a_dry_run_is_as_stored(case: str, weather: str) -> None:
    assert digest(case, weather) == stored[case][weather], (
        "what a run does has changed; if that was meant, say why in a commit of its own and renew "
        "the digests: python -m tools.golden --write"
    )
