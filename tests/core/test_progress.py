from __future__ import annotations

import pytest

from fedoptima.core.progress import Progress
from fedoptima.core.stopping import StopRule


def progress(every: float = 1.0, *, members: int = 3, rule: StopRule | None = None) -> Progress:
    counted = Progress(rule or StopRule(rounds=10), every)
    counted.begin(0.0, members)
    return counted


def test_a_round_is_as_many_merges_as_devices_were_there_when_it_began() -> None:
    counted = progress(members=2)
    counted.merged(1, closes_round=False, members=5)  # others come while it is under way
    assert counted.rounds == 0
    counted.merged(1, closes_round=False, members=5)
    assert counted.rounds == 1
    for _ in range(4):
        counted.merged(1, closes_round=False, members=1)
    assert counted.rounds == 1
    counted.merged(1, closes_round=False, members=1)
    assert counted.rounds == 2


def test_a_barriers_merge_is_a_round_however_many_took_part() -> None:
    counted = progress(members=5)
    counted.merged(2, closes_round=True, members=5)
    assert counted.rounds == 1


def test_rounds_go_on_when_everybody_has_left() -> None:
    counted = progress(members=0)
    counted.merged(1, closes_round=False, members=0)
    counted.merged(1, closes_round=False, members=0)
    assert counted.rounds == 2


def test_an_epoch_is_as_many_samples_as_all_devices_hold() -> None:
    counted = progress()
    counted.trained(50 / 200)
    counted.trained(250 / 200)
    assert counted.epochs == 1.5


def test_an_evaluation_is_due_once_per_interval_however_far_a_step_goes() -> None:
    counted = progress(every=0.5)
    due = []
    for samples in (10, 20, 20, 150, 0, 40):
        counted.trained(samples / 100)
        due.append(counted.evaluation_due())
    assert due == [False, False, True, True, False, True]


def evaluated_rounds(size: float, rounds: int, *, every: float = 1.0) -> list[int]:
    """Behind a barrier, with rounds of ``size`` epochs."""
    counted, found = progress(every), list[int]()
    for number in range(1, rounds + 1):
        counted.trained(size)
        counted.merged(1, closes_round=True, members=1)
        if counted.evaluation_due():
            found.append(number)
    return found


def test_a_round_of_slightly_less_than_an_epoch_is_evaluated_from_the_first_on() -> None:
    assert evaluated_rounds(0.99, 5) == [1, 2, 3, 4, 5]
    assert evaluated_rounds(0.7, 5) == [1, 3, 4]
    assert evaluated_rounds(1.9, 3, every=0.5) == [1, 2, 3]


def test_short_rounds_of_a_barrier_are_evaluated_when_the_epochs_are_over() -> None:
    assert evaluated_rounds(0.3, 10) == [4, 7, 10]


def test_updates_of_nearly_an_epoch_are_evaluated_from_the_first_on() -> None:
    """Without a barrier, of a device that is alone and leaves out an incomplete batch."""
    counted, due = progress(), list[bool]()
    for size in (0.96, 0.96, 0.96, 0.04, 0.04):
        counted.trained(size)
        counted.merged(1, closes_round=False, members=1)
        due.append(counted.evaluation_due())
    assert due == [True, True, True, False, False]


def test_a_shorter_round_after_a_long_one_is_not_evaluated_for_the_same_epoch() -> None:
    counted = progress()
    counted.trained(0.99)
    counted.merged(1, closes_round=True, members=1)
    assert counted.evaluation_due()
    counted.merged(1, closes_round=True, members=1)  # nobody took part
    assert not counted.evaluation_due()
    counted.trained(0.3)
    counted.merged(1, closes_round=True, members=1)
    assert not counted.evaluation_due()


def test_ten_tenths_are_an_epoch() -> None:
    counted = progress()
    due = []
    for _ in range(10):
        counted.trained(1 / 10)
        due.append(counted.evaluation_due())
    assert due == [False] * 9 + [True]


def test_an_answer_is_judged_by_the_epoch_in_which_it_was_asked_for() -> None:
    counted = progress(rule=StopRule(patience=1.0))
    first = counted.evaluate(version=0).index
    counted.trained(100 / 100)
    second = counted.evaluate(version=1).index
    counted.trained(500 / 100)
    counted.answered(first, {"accuracy": 0.5})
    assert counted.closing is None
    assert counted.waiting
    counted.answered(second, {"accuracy": 0.5})
    assert counted.closing is not None  # one epoch later, not six
    assert not counted.waiting


def test_the_share_of_a_time_budget_counts_from_the_beginning() -> None:
    counted = Progress(StopRule(hours=10.0 / 3600), 1.0)
    counted.begin(100.0, 1)
    assert counted.share(105.0) == 0.5


def rounds_until_spent(epochs: float, samples_a_round: int, *, closes_round: bool = True) -> int:
    counted = progress(rule=StopRule(epochs=epochs), members=1)
    while counted.spent() is None:
        counted.trained(samples_a_round / 1000)
        counted.merged(1, closes_round=closes_round, members=1)
    return counted.rounds


def test_a_budget_in_epochs_ends_with_the_nearest_round_of_a_barrier() -> None:
    # An incomplete last batch is left out, so a round is slightly less than an epoch.
    assert rounds_until_spent(25, 990) == 25  # 24.75 epochs; 26 rounds would be 25.74
    assert rounds_until_spent(25, 970) == 26  # 25.22 epochs; 25 rounds would be 24.25
    assert rounds_until_spent(1, 900) == 1
    assert rounds_until_spent(0.1, 900) == 1
    assert rounds_until_spent(12, 5000) == 2  # 10 epochs are nearer than 15


def test_a_budget_half_way_between_two_rounds_is_spent_in_full() -> None:
    assert rounds_until_spent(2.5, 1000) == 3


def test_a_budget_in_epochs_is_spent_in_full_without_a_barrier() -> None:
    assert rounds_until_spent(25, 990, closes_round=False) == 26


def test_a_small_round_of_a_barrier_is_no_reason_to_stop_early() -> None:
    counted = progress(rule=StopRule(epochs=1))
    for _ in range(9):  # most devices have left
        counted.trained(100 / 1000)
        counted.merged(1, closes_round=True, members=1)
        assert counted.spent() is None
    counted.trained(100 / 1000)
    counted.merged(1, closes_round=True, members=1)
    assert counted.spent() is not None


def epochs_until_it_stops(update: float, *, budget: float) -> float:
    counted = progress(rule=StopRule(epochs=budget))
    while counted.spent() is None:
        counted.trained(update)
        counted.merged(1, closes_round=False, members=3)
    return counted.epochs


def test_where_updates_are_a_large_part_of_the_budget_the_nearest_one_ends_the_run() -> None:
    # One device that leaves out an incomplete batch hands in 0.96 epochs; two of them are 1.92.
    assert epochs_until_it_stops(0.96, budget=1) == 0.96
    assert epochs_until_it_stops(0.64, budget=1) == 1.28
    assert epochs_until_it_stops(0.96, budget=2) == 1.92


def test_small_updates_go_on_until_the_budget_is_reached() -> None:
    assert epochs_until_it_stops(0.095, budget=1) == pytest.approx(11 * 0.095)
    assert epochs_until_it_stops(0.96, budget=10) == pytest.approx(11 * 0.96)
