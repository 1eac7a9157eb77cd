"""Two recipes that differ: in which keys, and how."""

from __future__ import annotations

from fedoptima.config.difference import difference, different_keys
from tests.support.network import tiny_recipe


def test_the_keys_that_differ_are_named_with_what_they_are_and_were() -> None:
    before = tiny_recipe("fl", stop={"rounds": 2}, seed=1)
    now = tiny_recipe("fl", stop={"epochs": 5}, seed=7)
    assert different_keys(before, before) == []
    assert difference(before, before) == ""
    found = difference(now, before)
    assert "seed is 7 and was 1" in found
    assert "stop.rounds is unset and was 2" in found


def test_no_more_than_three_are_told_and_long_values_are_cut() -> None:
    before = tiny_recipe("fl", seed=1, threads=1, name="short", stop={"rounds": 1})
    now = tiny_recipe("fl", seed=2, threads=2, name="long" * 50, stop={"rounds": 2})
    found = difference(now, before)
    assert found.count(" is ") == 3
    assert found.endswith("; 1 more")
    assert len(found) < 250
