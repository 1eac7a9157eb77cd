"""What FedOptima+ gains in the same time, from recorded curves."""

from __future__ import annotations

import pytest

from fedoptima.reproduction.records import Made, Record
from tools.plus_in_equal_time import compare, lengths, main

MADE = Made("", "", "", "", "")


def record(method: str, seed: int, seconds: float, pace: float, gigabytes: float) -> Record:
    """Reaches 80 % after ``pace`` seconds, and 1 point more with every further 100. FedOptima+ does
    four epochs where FedOptima does one; a record has the bytes of an epoch."""
    curve = [(s, 0.0, 0.8 + (s - pace) / 1e4) for s in range(0, int(seconds) + 1, 10)]
    idle = {"server_idle_share": 0.02, "device_idle_1_share": 0.01}
    epochs = seconds / (25.0 if method == "fedoptima_plus" else 100.0)
    figures = {"seconds": seconds, "epochs": epochs, "bytes_up": gigabytes * 1e9 / epochs, **idle}
    return Record(f"{method}{seed}{seconds}", "a_image", "training", method, {}, seed, figures,
                  curve, MADE)  # fmt: skip


def runs(method: str, pace: float, gigabytes: float) -> list[Record]:
    return [
        record(method, seed, length, pace + seed, gigabytes * length / 1000)
        for length in (1000.0, 2000.0)
        for seed in (1, 2)
    ]


def test_times_accuracies_and_bytes_are_set_against_fedoptima() -> None:
    plain = lengths("fedoptima", runs("fedoptima", 500.0, 10.0), 2)
    plus = lengths("fedoptima_plus", runs("fedoptima_plus", 100.0, 5.0), 2)
    lines = {what: (ours, holds) for what, ours, _, holds in compare(plain, plus, 0.80)}
    assert lines["time to 80.00%, of FedOptima's"] == (pytest.approx(110 / 510), True)
    assert lines["points more in 1000 s"] == (pytest.approx(4.0), True)
    assert lines["server busy in 2000 s"] == (pytest.approx(0.98), True)
    assert lines["bytes up until 80.00%, of FedOptima's"][0] == pytest.approx(0.5 * 110 / 510)


def test_a_method_that_gains_nothing_holds_no_bound() -> None:
    plain = lengths("fedoptima", runs("fedoptima", 500.0, 10.0), 2)
    same = lengths("fedoptima_plus", runs("fedoptima_plus", 500.0, 10.0), 2)
    held = [what for what, _, _, holds in compare(plain, same, 0.80) if holds]
    assert all("busy" in what for what in held)


def test_a_length_with_a_missing_seed_does_not_count() -> None:
    assert lengths("fedoptima", runs("fedoptima", 500.0, 10.0), 3) == []


def test_what_is_missing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "7"]) == 1
    assert "runs are missing" in capsys.readouterr().err
