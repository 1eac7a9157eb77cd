from __future__ import annotations

import json

import pytest

from fedoptima.core.plan import BlockProfile, Candidate, Plan, recorded_plan

BLOCKS = (BlockProfile("conv", 10, 20, 40, 40, 5, 20), BlockProfile("dense", 1, 2, 4, 4, 7, 28))
ROW = Candidate(1, "conv", 10, 40, 0.5, 0.25, 0.5, 0)
PLAN = Plan(BLOCKS, 1, "default", BLOCKS[1], "measured", (ROW,), 3)


def test_a_plan_comes_back_from_its_json() -> None:
    assert Plan.from_json(PLAN.to_json()) == PLAN
    whole = Plan(BLOCKS, 2, "none", None, "paper", ())
    assert Plan.from_json(whole.to_json()) == whole


def test_the_servers_bytes_are_those_behind_the_cut() -> None:
    assert PLAN.server_bytes == 28
    assert Plan(BLOCKS, 2, "none", None, "paper", ()).server_bytes == 0


@pytest.mark.parametrize(
    "text", ["", "plan", "[]", "3", "{}", json.dumps({**json.loads(PLAN.to_json()), "blocks": [1]})]
)
def test_what_is_not_a_plan_of_this_version_is_none(text: str) -> None:
    assert recorded_plan(text) is None
    assert recorded_plan(PLAN.to_json()) == PLAN
