from __future__ import annotations

import pytest

from fedoptima.cli.formatting import about, brief, counted, duration, percent


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (63.2, "1 min 03 s"),
        (3599.7, "1 h 00 min 00 s"),
        (3723, "1 h 02 min 03 s"),
        (3_600_000, "1,000 h 00 min 00 s"),
    ],
)
def test_a_duration_reads_as_people_say_it(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_what_was_not_measured_is_a_dash() -> None:
    assert percent(None) == "-"
    assert percent(0.9644) == "96.4 %"


def test_three_figures_are_enough() -> None:
    assert [brief(x) for x in (0.012345, 1.2345, 99.94, 12345.6)] == [
        "0.0123",
        "1.23",
        "99.9",
        "12,346",
    ]


def test_roughly_is_enough_for_how_long_ago() -> None:
    assert [about(x) for x in (0.4, 12.3, 99.6, 5999, 108_000)] == (
        ["0 s", "12 s", "2 min", "2 h", "30 h"]
    )


def test_one_is_not_several() -> None:
    assert [counted(n, "device") for n in (0, 1, 2)] == ["0 devices", "1 device", "2 devices"]
