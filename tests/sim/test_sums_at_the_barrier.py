"""A barrier that keeps what was handed in adds updates up as they come."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch

from benchmarks.modelled_workers import Modelled
from fedoptima.analysis.accounts import Accounts
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.effects import Fold
from fedoptima.core.events import Received
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.types import SERVER
from fedoptima.data.custom import as_dataset
from fedoptima.experiments.assembly import build_simulation
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import assemble, prepare
from fedoptima.methods.registry import COMPARED
from fedoptima.sim.processes.shared_memory import SharedTensors
from fedoptima.trace.record import Record
from tests.experiments.runs import TRAINING, data, network, run, set_up
from tests.sim.processes.test_schedule import STEP
from tests.sim.test_checkpoint import EIGHT

WITH_BARRIER = [name for name in COMPARED if name in ("fl", "splitfed", "pipar", "cse_fsl")]


class Watch:
    """How many updates that have arrived are in memory, at any event."""

    def __init__(self) -> None:
        self.most = self.updates = 0
        self._there: list[weakref.ref[object]] = []

    def observe(self, record: Record) -> None:
        match record.event:
            case Received(_, _, ModelUpdate(data=payload)):
                value = payload.value
                assert isinstance(value, dict)
                # A worker's result is gone with its name, tensors of this process by themselves.
                own = value if isinstance(value, SharedTensors) else next(iter(value.values()))
                self._there.append(weakref.ref(own))
                self.updates += 1
        self._there = [one for one in self._there if one() is not None]
        self.most = max(self.most, len(self._there))


def watched(method: str, devices: int, *, workers: bool = False, **options: object) -> Watch:
    """Equal devices, whose updates come all at once. ``workers``: two, in modelled time."""
    fleet = {
        "server": {"gflops": 100.0},  # else updates wait until it has done a step
        "devices": [{"name": "d", "count": devices, "gflops": 0.003, "mbps": 2.0}],
    }
    table = {
        "model": {"name": "custom"},
        "data": {"name": "custom", "partition": {"kind": "iid"}},
        "fleet": fleet,
        "method": {"name": method, **options},
        "training": TRAINING,
        "split": {"at": 1},
        "stop": {"rounds": 2},
    }
    given = Given(network(), as_dataset(data(8 * devices), data(48, seed=1)))
    experiment, watch = prepare(validate(Recipe, table, "test"), given), Watch()
    observers = [watch.observe, Accounts().observe]
    if workers:
        executor = Modelled(experiment, 2, STEP)
        build_simulation(experiment, executor, lambda: executor.plan, observers).run()
        executor.settle()
    else:
        assemble(experiment, observers).simulation.run()
    assert watch.updates == 2 * devices
    return watch


@pytest.mark.parametrize("method", WITH_BARRIER)
def test_updates_in_memory_do_not_grow_with_the_number_of_devices(method: str) -> None:
    assert watched(method, 6, on_leave="keep").most == 1
    assert watched(method, 24, on_leave="keep").most == 1


def test_nor_do_they_with_workers() -> None:
    """Those whose sums have not been reported yet are there, too; in methods whose server trains
    also those that are behind its steps."""
    few, many = (watched("fl", n, workers=True, on_leave="keep").most for n in (16, 64))
    assert many <= few <= 8


@pytest.mark.parametrize("options", [{"on_leave": "drop"}, {"robust": "refuse"}])
def test_all_updates_are_kept_where_one_may_be_taken_out_again(options: dict[str, object]) -> None:
    assert watched("fl", 24, **options).most == 24


@pytest.mark.parametrize("method", WITH_BARRIER)
def test_the_mean_is_that_of_a_barrier_that_keeps_all_updates(method: str) -> None:
    kept, dropped = (
        run(method={"name": method, "on_leave": way}, fleet=EIGHT) for way in ("keep", "drop")
    )
    assert kept.seconds == dropped.seconds
    for name, tensor in kept.weights.items():
        torch.testing.assert_close(tensor, dropped.weights[name], rtol=1e-4, atol=1e-5)


def folds(records: list[Record]) -> Iterator[Fold]:
    for record in records:
        yield from (e for e in record.effects if record.node == SERVER and isinstance(e, Fold))


def test_robust_merging_sees_all_updates_at_once() -> None:
    records: list[Record] = []
    method = {"name": "fl", "on_leave": "keep", "robust": "trimmed_mean"}
    set_up(records, method=method, fleet=EIGHT).simulation.run()
    assert not list(folds(records))
    methods = [
        {"name": "fl", "on_leave": way, "robust": "trimmed_mean"} for way in ("keep", "drop")
    ]
    assert len({run(method=m, fleet=EIGHT).weights_digest for m in methods}) == 1
