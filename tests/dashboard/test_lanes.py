from __future__ import annotations

import pytest

from fedoptima.analysis.spans import Kind
from fedoptima.analysis.timeline import Lane, Timeline
from fedoptima.core.types import SERVER, NodeId
from fedoptima.dashboard import lanes

BEGAN = 10.0


def timeline(
    shares: list[float], *, start: float = 0.0, names: tuple[str, ...] = ("a",)
) -> Timeline:
    row = Lane({Kind.TRAIN: tuple(shares), Kind.MERGE: (0.0,) * len(shares)})
    return Timeline(BEGAN + start, 0.5, len(shares), {NodeId(n): row for n in names}, None)


def shares(drawn: dict[str, object], lane: int = 0) -> list[float]:
    row = drawn["lanes"][lane]["shares"]["train"]  # type: ignore[index]
    return [(ord(letter) - ord("#")) / 90 for letter in row]


def test_few_bins_are_kept_as_they_are() -> None:
    drawn = lanes.plain(timeline([0.0, 0.5, 1.0], start=3.0), ["a"], BEGAN)
    assert shares(drawn) == pytest.approx([0.0, 0.5, 1.0])
    assert (drawn["start"], drawn["bin_seconds"]) == (3.0, 0.5)


def test_kinds_that_do_not_occur_are_left_out() -> None:
    drawn = lanes.plain(timeline([1.0]), ["a"], BEGAN)
    assert drawn["lanes"] == [{"name": "a", "shares": {"train": "}"}}]


def test_many_bins_are_joined_and_the_time_stays_the_same() -> None:
    many = [1.0, 0.0] * lanes.MOST_BINS
    drawn = lanes.plain(timeline(many), ["a"], BEGAN)
    assert drawn["bin_seconds"] == 1.0
    assert shares(drawn) == pytest.approx([0.5] * lanes.MOST_BINS)


def test_joined_bins_do_not_move_when_the_window_does() -> None:
    many = [float(number % 2 == 0) for number in range(2 * lanes.MOST_BINS)]
    drawn = lanes.plain(timeline(many[1:], start=0.5), ["a"], BEGAN)
    assert drawn["start"] == 0.0
    assert shares(drawn)[1:] == pytest.approx([0.5] * (lanes.MOST_BINS - 1))


def test_lanes_come_in_the_order_asked_for_and_the_rest_is_counted() -> None:
    names = tuple(f"d{number}" for number in range(lanes.MOST_LANES + 5))
    drawn = lanes.plain(timeline([1.0], names=names), [*reversed(names), "not here"], BEGAN)
    found = [lane["name"] for lane in drawn["lanes"]]  # type: ignore[attr-defined]
    assert found == list(reversed(names))[: lanes.MOST_LANES]
    assert drawn["left_out"] == 5


def test_a_run_that_has_not_begun_has_no_lanes() -> None:
    assert lanes.plain(Timeline(0.0, 0.5, 0, {}, None), [SERVER], 0.0)["lanes"] == []
