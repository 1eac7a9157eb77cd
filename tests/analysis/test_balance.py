from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.analysis.balance import Balance, BalanceAccount, Contribution, jain
from fedoptima.core.effects import Note
from fedoptima.core.events import JobDone
from fedoptima.core.jobs import FullStep
from fedoptima.trace.record import Record
from tests.analysis.stories import A, B, batch, blob, joins, merge, merged, step, stepped, told


def balance(*records: Record) -> Balance:
    account = BalanceAccount()
    for record in (*joins(0.0, A, B), *records):
        account.observe(record)
    return account.balance()


def test_each_device_is_credited_with_what_came_from_it() -> None:
    found = balance(
        stepped(1.0, step(A, 0), samples=4),
        stepped(2.0, step(A, 1), samples=3),
        stepped(3.0, step(B, 0), samples=4),
        told(3.0, A, JobDone(1, FullStep(0), blob("", 0), samples=5)),
        merged(4.0, merge((A, "u", 0.25), (B, "v", 0.5))),
        merged(5.0, merge((A, "w", 0.25))),
    )
    assert found.devices[A] == Contribution(2, 0, 7, 5, 2, 0.5, 0.5, 0.5)
    assert found.devices[B] == Contribution(1, 0, 4, 0, 1, 0.5, 0.5, 0.5)
    assert found.batches_jain == pytest.approx(3**2 / (2 * (2**2 + 1**2)))
    assert found.merge_weight_jain == 1.0


def test_a_batch_in_parts_is_one_batch() -> None:
    found = balance(*(stepped(1.0, step(A, 0, part=n, parts=3), samples=n) for n in range(3)))
    assert found.devices[A].batches == 1
    assert found.devices[A].server_samples == 0 + 1 + 2


def test_late_batches_are_counted_for_the_device_and_in_all() -> None:
    found = balance(*(batch(1.0, A, n, 10, Note("late batch dropped", A)) for n in range(2)))
    assert found.devices[A].late_batches == 2
    assert found.devices[B].late_batches == 0
    assert found.late_batches == 2


def test_a_device_that_contributed_nothing_counts_against_the_balance() -> None:
    found = balance(stepped(1.0, step(A, 0)))
    assert found.batches_jain == 0.5
    assert found.devices[B].batches == 0


def test_where_nobody_contributes_there_is_no_balance() -> None:
    found = balance()
    assert found.batches_jain is None
    assert found.merge_weight_jain is None


def test_jains_index_of_nobody_is_none() -> None:
    assert jain([]) is None


@given(shares=st.lists(st.floats(0, 1e12), min_size=1, max_size=40))
def test_jains_index_is_at_most_one_and_at_least_one_over_n(shares: list[float]) -> None:
    index = jain(shares)
    if max(shares) == 0:
        assert index is None
    else:
        assert index is not None
        assert 1 / len(shares) <= index * (1 + 1e-9)
        assert index <= 1


@given(share=st.floats(1e-200, 1e200), count=st.integers(1, 40))
def test_equal_shares_are_perfectly_balanced(share: float, count: int) -> None:
    assert jain([share] * count) == pytest.approx(1.0)
