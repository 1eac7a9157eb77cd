from __future__ import annotations

import pytest

from fedoptima.analysis.server_state import ServerState
from fedoptima.analysis.staleness import DeviceStaleness, Staleness, StalenessAccount
from fedoptima.core.effects import Run
from fedoptima.core.jobs import Merge
from fedoptima.core.types import NodeId
from fedoptima.trace.record import Record
from tests.analysis.stories import (
    A,
    B,
    answers,
    batch,
    joins,
    merge,
    merged,
    planned,
    refusal,
    step,
    stepped,
    update,
)


def staleness(*records: Record) -> Staleness:
    state = ServerState()
    account = StalenessAccount(state)
    for record in (*joins(0.0, A, B), planned(0.0), *records):
        state.observe(record)
        account.observe(record)
    return account.staleness()


def folded_in(name: str, device: NodeId, version: int) -> list[Record]:
    """One update comes and is merged at once."""
    job: Merge = merge((device, name, 1.0))
    return [
        update(1.0, device, name, Run(1, job), version=version),
        merged(1.0, job, *answers(device)),
    ]


def test_staleness_is_the_version_merged_into_minus_the_version_begun_with() -> None:
    found = staleness(
        *folded_in("a0", A, 0),  # into 0
        *folded_in("a1", A, 1),  # into 1
        *folded_in("a2", A, 2),  # into 2
        *folded_in("b0", B, 0),  # into 3
        *folded_in("a3", A, 3),  # into 4
    )
    assert found.devices[A] == DeviceStaleness(4, 0, mean=1 / 4, max=1, histogram=(3, 1))
    assert found.devices[B] == DeviceStaleness(1, 0, mean=3.0, max=3, histogram=(0, 0, 1))
    assert (found.merged, found.mean, found.max) == (5, 4 / 5, 3)


def test_the_histogram_goes_by_powers_of_two() -> None:
    records = [record for n in range(9) for record in folded_in(f"a{n}", A, 0)]
    assert staleness(*records).devices[A].histogram == (1, 1, 2, 4, 1)  # 0, 1, 2-3, 4-7, 8


def test_a_buffers_updates_are_as_stale_as_they_are_when_they_are_merged() -> None:
    pair = merge((A, "a0", 0.5), (A, "a1", 0.5))
    found = staleness(
        update(1.0, A, "a0", *answers(A)),
        *folded_in("b0", B, 0),
        update(2.0, A, "a1", Run(1, pair), version=0),
        merged(2.0, pair, *answers(A)),
    )
    assert found.devices[A] == DeviceStaleness(2, 0, mean=1.0, max=1, histogram=(0, 2))


def test_refusals_are_counted_and_have_no_staleness() -> None:
    found = staleness(update(1.0, A, "a0", refusal(A), *answers(A)), *folded_in("b0", B, 0))
    assert found.devices[A] == DeviceStaleness(0, 1, mean=0.0, max=0, histogram=())
    assert (found.merged, found.refused) == (1, 1)


def test_a_batchs_age_runs_from_its_arrival_to_its_step() -> None:
    found = staleness(
        batch(1.0, A, 0, 10, Run(1, step(A, 0))),
        batch(1.5, A, 1, 10),
        batch(2.0, B, 0, 10),
        stepped(3.0, step(A, 0), Run(2, step(B, 0))),
        stepped(6.0, step(B, 0), Run(3, step(A, 1))),
    )
    assert found.activation_age_max == 4.5
    assert found.activation_age_mean == pytest.approx((0.0 + 1.0 + 4.5) / 3)
    assert found.activation_ages == (1, *9 * (0,), 1, 0, 0, 1)  # 0 ms, 512-1023 ms, 4096-8191 ms


def test_a_run_without_merges_and_steps_has_no_staleness() -> None:
    assert staleness() == Staleness(0, 0, 0.0, 0, {}, 0.0, 0.0)
