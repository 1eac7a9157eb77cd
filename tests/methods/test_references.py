"""Every method against its reference, in runs whose order of arrival only the trace knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedoptima.core.events import JobDone
from fedoptima.core.jobs import ServerStep
from fedoptima.core.types import SERVER
from tests.methods.references import (
    AuxiliaryWorker,
    SplitWorker,
    State,
    Worker,
    fedasync,
    fedavg,
    fedbuff,
    mixed,
)
from tests.methods.runs import (
    ALIKE,
    EVEN,
    ROWS,
    UNEVEN,
    Run,
    assert_close,
    assert_equal,
    assert_statistics_moved,
    loaders,
    network,
    play,
)


def polynomial(staleness: int) -> float:
    return 0.8 * (staleness + 1) ** -0.5


def whole_workers(rows: Mapping[str, range] = ROWS) -> dict[str, Worker]:
    return {name: Worker(network(), loader) for name, loader in loaders(rows).items()}


def split_workers(
    model: nn.Sequential, parts: int = 1, rows: Mapping[str, range] = ROWS
) -> dict[str, Worker]:
    return {name: SplitWorker(model, own, parts=parts) for name, own in loaders(rows).items()}


def counters(weights: State) -> set[int]:
    return {int(t) for name, t in weights.items() if name.endswith("num_batches_tracked")}


def assert_uneven(run: Run) -> None:
    """A fleet whose devices come in turn would not tell one way of counting from another."""
    came = Counter(run.arrivals)
    assert len(came) == len(ROWS)
    assert max(came.values()) >= 2 * min(came.values())


# With "keep" what devices hand in is added up as it comes, in double precision.
SUMS = pytest.mark.parametrize(("on_leave", "doubled"), [("keep", True), ("drop", False)])


@SUMS
def test_fl_is_the_mean_weighted_by_samples(on_leave: str, doubled: bool) -> None:
    run = play("fl", rounds=3, on_leave=on_leave)
    exact = "" if doubled else None
    assert_equal(run.weights, fedavg(whole_workers(), network().state_dict(), 3, exact=exact))
    assert_statistics_moved(run.weights)
    assert counters(run.weights) == {3 * (31 // 5)}  # of the one that took the most steps


def test_fedasync_mixes_each_update_as_it_comes() -> None:
    run = play("fedasync", rows=ALIKE, rounds=6)
    start = network().state_dict()
    *_, expected = fedasync(whole_workers(ALIKE), start, run.arrivals, run.merges, polynomial)
    assert_uneven(run)
    assert run.merges == 18
    assert_equal(run.weights, expected)
    assert_statistics_moved(run.weights)


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({"staleness": "constant", "alpha": 0.6}, lambda s: 0.6),
        ({"staleness": "inverse", "alpha": 0.9}, lambda s: 0.9 / (s + 1)),
        (
            {"staleness": "hinge", "alpha": 0.7, "staleness_a": 2.0, "staleness_b": 1.0},
            lambda s: 0.7 if s <= 1 else 0.7 / (2 * (s - 1) + 1),
        ),
        ({"alpha": 1.0, "alpha_max": 0.5}, lambda s: min(0.5, (s + 1) ** -0.5)),
    ],
    ids=["constant", "inverse", "hinge", "capped"],
)
def test_fedasync_weighs_by_the_rule_it_is_given(options, weight) -> None:  # type: ignore[no-untyped-def]
    run = play("fedasync", rows=ALIKE, rounds=4, **options)
    start = network().state_dict()
    *_, expected = fedasync(whole_workers(ALIKE), start, run.arrivals, run.merges, weight)
    assert_close(run.weights, expected)


SCRIPT = {"rho": 0.4, "reset_optimizer": True, "alpha_decay": 0.5, "alpha_decay_at": [3, 7]}


def halved(merges: int) -> float:
    return 0.5 ** ((merges >= 3) + (merges >= 7))


def test_fedasync_has_what_its_authors_script_has() -> None:
    """A proximal term, an optimiser that begins anew with each task, and alpha halved twice."""
    run = play("fedasync", rows=ALIKE, rounds=4, **SCRIPT)
    assert run.merges > 8
    workers = {
        name: Worker(network(), own, rho=0.4, resets=True) for name, own in loaders(ALIKE).items()
    }
    start = network().state_dict()
    *_, expected = fedasync(workers, start, run.arrivals, run.merges, polynomial, decay=halved)
    assert_close(run.weights, expected)


def test_oafl_has_it_too_on_both_sides() -> None:
    run = play("oafl", rows=ALIKE, rounds=4, fleet=UNEVEN, **SCRIPT)
    workers = {
        name: SplitWorker(network(), own, rho=0.4, resets=True)
        for name, own in loaders(ALIKE).items()
    }
    start = network().state_dict()
    *_, expected = fedasync(workers, start, run.arrivals, run.merges, polynomial, decay=halved)
    assert_close(run.weights, expected)


@pytest.mark.parametrize("name", ["fedasync", "oafl"])
def test_each_option_of_the_script_changes_what_is_learned(name: str) -> None:
    runs = [
        play(name, rows=ALIKE, rounds=3, **options)
        for options in (
            {},
            {"rho": 0.4},
            {"reset_optimizer": True},
            {"alpha_decay": 0.5, "alpha_decay_at": [3]},
        )
    ]
    firsts = [float(next(iter(run.weights.values())).sum()) for run in runs]
    assert len(set(firsts)) == len(firsts)


def test_fedasync_weighs_unequal_shares_as_fedavg_does() -> None:
    """Worked out again: rounds of a mean share, and staleness in what the others hold."""
    run = play("fedasync", rounds=6)
    workers = whole_workers()
    mean = sum(worker.loader.samples for worker in workers.values()) / len(workers)
    model, age = network().state_dict(), 0.0
    sent = {name: (model, age) for name in workers}
    for device in run.arrivals[: run.merges]:
        worker, size = workers[device], workers[device].loader.samples / mean
        if abs(worker.loader.samples - mean) >= 5:
            worker.iterations = int(mean) // 5
        began, then = sent[device]
        weight = 0.8 * ((age - then) / max(1, size) + 1) ** -0.5 * min(1, size)
        model, age = mixed(model, worker.train(began), weight), age + size
        sent[device] = (model, age)
    assert_close(run.weights, model)


def assert_somebody_came_back(workers: dict[str, Worker]) -> None:
    """What a refusal does to a device shows only in an update of its that is merged later on."""
    fates = [worker.merged for worker in workers.values()]
    assert any((False, True) in pairwise(fate) for fate in fates)


def test_fedasync_leaves_out_what_is_too_old_and_goes_on_from_the_global_model() -> None:
    run = play("fedasync", rows=ALIKE, rounds=5, fleet=EVEN, max_delay=1)
    workers = whole_workers(ALIKE)
    start = network().state_dict()
    *_, expected = fedasync(workers, start, run.arrivals, run.merges, polynomial, 1)
    assert_somebody_came_back(workers)
    assert run.refused == sum(worker.merged.count(False) for worker in workers.values())
    assert_equal(run.weights, expected)


@pytest.mark.parametrize("average", [None, 0.0, 3.0])
@pytest.mark.parametrize(
    ("buffer", "rate", "momentum"), [(1, 1.0, 0.0), (2, 1.0, 0.0), (2, 0.7, 0.5), (4, 0.5, 0.9)]
)
def test_fedbuff_moves_by_the_mean_of_scaled_changes(
    buffer: int, rate: float, momentum: float, average: float | None
) -> None:
    """A change that is as old as the average weighs 1; unless given, the average is (K - 1) / Z."""
    usual = (len(ALIKE) - 1) / buffer if average is None else average
    run = play(
        "fedbuff",
        rows=ALIKE,
        rounds=5,
        buffer=buffer,
        server_learning_rate=rate,
        server_momentum=momentum,
        average_staleness=average,
    )
    assert_uneven(run)
    assert run.merges >= 3
    expected = fedbuff(
        whole_workers(ALIKE),
        network().state_dict(),
        run.arrivals,
        run.merges,
        lambda staleness: ((usual + 1) / (staleness + 1)) ** 0.5,
        buffer=buffer,
        rate=rate,
        momentum=momentum,
    )
    assert_close(run.weights, expected)
    assert_statistics_moved(run.weights)


@SUMS
def test_splitfed_is_fedavg_of_both_sides(on_leave: str, doubled: bool) -> None:
    run = play("splitfed", rounds=3, on_leave=on_leave)
    exact = "0." if doubled else None  # the copies on the server are merged as they were
    expected = fedavg(split_workers(network()), network().state_dict(), 3, exact=exact)
    assert_equal(run.weights, expected)
    assert_statistics_moved(run.weights)
    assert counters(run.weights) == {3 * (31 // 5)}


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_pipar_adds_up_the_gradients_of_parts_in_flight(parts: int) -> None:
    """With batch-norm: its statistics are those of the parts, once for each."""
    run = play("pipar", rounds=2, micro_batches=parts)
    assert_close(run.weights, fedavg(split_workers(network(), parts), network().state_dict(), 2))
    assert_statistics_moved(run.weights)
    assert counters(run.weights) == {2 * (31 // 5) * parts}


def test_oafl_mixes_both_sides_as_they_come() -> None:
    run = play("oafl", rows=ALIKE, rounds=6, fleet=UNEVEN)
    start = network().state_dict()
    *_, expected = fedasync(
        split_workers(network(), rows=ALIKE), start, run.arrivals, run.merges, polynomial
    )
    assert_uneven(run)
    assert_equal(run.weights, expected)
    assert_statistics_moved(run.weights)


def test_a_refused_oafl_update_refreshes_the_device_and_its_server_copy() -> None:
    """The reference goes on from both sides of the global model: so must the run."""
    run = play("oafl", rows=ALIKE, rounds=5, fleet=EVEN, max_delay=1)
    workers = split_workers(network(), rows=ALIKE)
    start = network().state_dict()
    *_, expected = fedasync(workers, start, run.arrivals, run.merges, polynomial, 1)
    assert_somebody_came_back(workers)
    assert run.refused == sum(worker.merged.count(False) for worker in workers.values())
    assert_equal(run.weights, expected)


@SUMS
def test_cse_fsl_is_fedavg_of_the_device_sides_and_sgd_on_the_server(
    on_leave: str, doubled: bool
) -> None:
    run = play("cse_fsl", rounds=3, on_leave=on_leave)
    assert run.auxiliary is not None
    workers = {
        name: AuxiliaryWorker(network(), run.auxiliary, own) for name, own in loaders().items()
    }
    start = deepcopy(workers["fast"].model.state_dict())
    merged = fedavg(workers, start, 3, exact="" if doubled else None)
    device_side = {n: t for n, t in merged.items() if not n.startswith("aux.")}
    assert_equal(run.weights, {**device_side, **trained_server_side(run, workers)})
    assert_statistics_moved(run.weights)


def trained_server_side(run: Run, workers: Mapping[str, AuxiliaryWorker]) -> State:
    """What devices send does not depend on the server side, so that can be trained afterwards."""
    back = network()[1:]
    optimizer = torch.optim.SGD(back.parameters(), lr=0.03, momentum=0.8, fused=True)
    steps = [
        (record.event.job.origin, record.event.job.seq)
        for record in run.records
        if record.node == SERVER
        and isinstance(record.event, JobDone)
        and isinstance(record.event.job, ServerStep)
    ]
    assert len(steps) > 20
    for device, seq in steps:
        hidden, labels = workers[device].activations[seq]
        optimizer.zero_grad()
        cross_entropy(back(hidden), labels).backward()
        optimizer.step()
    return dict(back.state_dict())


@pytest.mark.parametrize("auxiliary", ["classifier", "default"])
def test_fedoptima_is_fedasync_of_the_device_sides_and_sgd_on_the_server(auxiliary: str) -> None:
    run = play("fedoptima", rows=ALIKE, rounds=6, auxiliary=auxiliary)
    assert run.auxiliary is not None
    workers = {
        name: AuxiliaryWorker(network(), run.auxiliary, own) for name, own in loaders(ALIKE).items()
    }
    start = deepcopy(workers["fast"].model.state_dict())
    versions = fedasync(workers, start, run.arrivals, run.merges, lambda s: 1 / (s + 1))
    assert_uneven(run)
    device_side = {n: t for n, t in versions[-1].items() if not n.startswith("aux.")}
    for worker in workers.values():
        worker.train(versions[worker.began])  # the round the end of the run cut short
    assert_equal(run.weights, {**device_side, **trained_server_side(run, workers)})
    assert_statistics_moved(run.weights)
