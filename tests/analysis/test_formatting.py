from __future__ import annotations

import pytest

from fedoptima.analysis.formatting import (
    accuracies,
    brief,
    counted,
    duration,
    listed,
    mebibytes,
    megabytes,
    percent,
    roughly,
)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (0.0451, "45.1 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (63.2, "1 min 03 s"),
        (3599.7, "1 h 00 min"),
        (3723, "1 h 02 min"),
        (3_600_000, "1,000 h 00 min"),
    ],
)
def test_a_duration_reads_as_people_say_it(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_what_was_not_measured_is_a_dash() -> None:
    assert percent(None) == "-"
    assert percent(0.9644) == "96.4 %"
    assert accuracies(None, None) == "-"
    assert accuracies(0.5, 0.81) == "50.0 % (best 81.0 %)"


def test_sizes_have_three_figures() -> None:
    assert [megabytes(x) for x in (12_345, 1.5e6, 1.2345e9)] == ["0.0123 MB", "1.5 MB", "1,234 MB"]
    assert mebibytes(3 * 2**19) == "1.5 MiB"


def test_a_long_list_ends_in_a_count() -> None:
    assert [listed(list(names)) for names in ("", "a", "ab", "abcd", "abcdef")] == [
        "",
        "a",
        "a and b",
        "a, b, c and d",
        "a, b, c, d and 2 more",
    ]


def test_three_figures_are_enough() -> None:
    assert [brief(x) for x in (0.012345, 1.2345, 99.94, 12345.6)] == [
        "0.0123",
        "1.23",
        "99.9",
        "12,346",
    ]


def test_roughly_is_enough_for_how_long_ago() -> None:
    assert [roughly(x) for x in (0.4, 12.3, 99.6, 5999, 108_000)] == (
        ["0 s", "12 s", "2 min", "2 h", "30 h"]
    )


def test_one_is_not_several() -> None:
    assert [counted(n, "device") for n in (0, 1, 2)] == ["0 devices", "1 device", "2 devices"]
