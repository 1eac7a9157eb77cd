from __future__ import annotations

from itertools import pairwise

import pytest

from fedoptima.analysis.metrics import Moment, condition, distributions, evaluations, metrics
from fedoptima.core.effects import Run
from fedoptima.core.types import NodeId
from tests.analysis.stories import A, batch, joins, planned, step, stepped
from tests.tracking.moments import DEVICES, accounts_of, moment_of, records_of

Values = dict[tuple[str, tuple[str, ...]], float]


def values_of(moment: Moment) -> Values:
    return {
        (metric.name, labels): value
        for metric in metrics(moment)
        for labels, value in metric.values.items()
    }


def looks(method: str, *, every: int, churn: bool = False) -> list[Values]:
    """A run as it is seen after every so many records."""
    accounts, seen = accounts_of(()), []
    for count, record in enumerate(records_of(method, churn=churn)):
        accounts.observe(record)
        if count % every == 0:
            seen.append(values_of(Moment(accounts.summary(), DEVICES, None)))
    return seen


@pytest.mark.parametrize("method", ["fedoptima", "fl", "splitfed"])
def test_busy_and_idle_seconds_are_those_of_the_accounts(method: str) -> None:
    records = records_of(method)
    accounts = accounts_of(records[: len(records) // 2])
    found = values_of(Moment(accounts.summary(), DEVICES, None))
    usage = accounts.usage.usage()
    assert len(usage) == 4
    for node, use in usage.items():
        assert found["fedoptima_node_busy_seconds_total", (node,)] == use.busy
        assert found["fedoptima_node_idle_seconds", (node, "1")] == use.idle_1
        assert found["fedoptima_node_idle_seconds", (node, "2")] == use.idle_2


@pytest.mark.parametrize("method", ["fedoptima", "fl", "fedbuff"])
def test_a_counter_never_falls(method: str) -> None:
    before: Values = {}
    for seen in looks(method, every=100, churn=True):
        counters = {key: value for key, value in seen.items() if key[0].endswith("_total")}
        assert before.keys() <= counters.keys()
        assert all(counters[key] >= value for key, value in before.items())
        before = counters
    assert before["fedoptima_run_seconds_total", ()] > 0


def test_idle_time_by_type_is_no_counter_because_it_moves_from_one_to_the_other() -> None:
    key = ("fedoptima_node_idle_seconds", ("fast", "1"))
    seen = [found.get(key, 0.0) for found in looks("fl", every=5)]
    assert any(after < before for before, after in pairwise(seen))


def test_traffic_is_told_by_direction_and_kind() -> None:
    moment = moment_of(records_of("splitfed"))
    found, traffic = values_of(moment), moment.summary.traffic
    assert found["fedoptima_bytes_total", ("up", "activations")] == traffic.up.activations > 0
    assert found["fedoptima_bytes_total", ("down", "gradients")] == traffic.down.gradients > 0


def test_a_device_is_up_while_it_takes_part() -> None:
    summary = moment_of(records_of("fedoptima")).summary
    here = {NodeId("slow"), NodeId("new")}  # the new one has contributed nothing yet
    found = values_of(Moment(summary, here, None))
    up = {labels[0]: value for (name, labels), value in found.items() if name.endswith("_up")}
    assert up == {"fast": 0, "middle": 0, "new": 1, "slow": 1}


def test_what_a_run_does_not_have_is_left_out() -> None:
    names = {metric.name for metric in metrics(moment_of(records_of("fl", dry=True), cap=None))}
    assert names.isdisjoint(
        {"fedoptima_accuracy_ratio", "fedoptima_loss", "fedoptima_activation_cap_batches"}
    )
    assert "fedoptima_evaluations_total" in names


def test_queue_and_memory_are_those_of_this_moment() -> None:
    story = [
        *joins(0.0, A),
        planned(1.0, model=1000),
        batch(2.0, A, 0, 10),
        batch(3.0, A, 1, 10, Run(1, step(A, 0))),
        stepped(9.0, step(A, 0), Run(2, step(A, 1))),
    ]
    names = ("fedoptima_activation_queue_batches", "fedoptima_server_memory_bytes")
    seen = [
        tuple(values_of(moment_of(story[:end]))[name, ()] for name in names) for end in (4, 5, 6)
    ]
    assert seen == [(1, 1010), (1, 1020), (0, 1010)]


def test_all_that_is_stale_is_in_the_histograms() -> None:
    moment = moment_of(records_of("fedoptima"))
    staleness, ages = distributions(moment)
    facts = moment.summary.staleness
    assert sum(staleness.counts) == facts.merged > 0
    assert staleness.counts[0] == sum(d.histogram[0] for d in facts.devices.values())
    assert staleness.total / facts.merged == pytest.approx(facts.mean)
    assert sum(ages.counts) == sum(facts.activation_ages) > 0
    assert ages.total / sum(ages.counts) == pytest.approx(facts.activation_age_mean)


def test_the_buckets_are_those_of_the_accounts_and_always_the_same() -> None:
    early, late = (list(distributions(moment_of(r))) for r in ((), records_of("fedoptima")))
    assert [one.bounds for one in early] == [one.bounds for one in late]
    staleness, ages = late
    assert staleness.bounds == (0, 1, 3, 7, 15, 31, 63, 127, 255)
    assert ages.bounds[:4] == (0.001, 0.002, 0.004, 0.008)
    assert ages.bounds[-1] > 120
    for one in (staleness, ages):
        assert len(one.counts) == len(one.bounds) + 1


def test_an_evaluations_throughput_is_since_the_one_before() -> None:
    curve = moment_of(records_of("fedoptima")).summary.curve
    first, second, *_ = evaluations(curve)
    assert first["accuracy"] == curve[0].accuracy
    assert second["throughput/device_samples_per_second"] == pytest.approx(
        (curve[1].device_samples - curve[0].device_samples) / (curve[1].seconds - curve[0].seconds)
    )


def test_the_condition_has_the_accounts_shares() -> None:
    summary = moment_of(records_of("fl")).summary
    found = condition(summary)
    assert found["idle/devices_type_2_ratio"] == summary.device_usage.idle_2_share > 0
    assert found["idle/server_type_1_ratio"] == summary.server_usage.idle_1_share > 0
