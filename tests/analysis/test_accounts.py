"""All accounts over whole runs: any method, any misfortune; and against the machines' own books."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from fedoptima.analysis.accounts import Accounts, summarise
from fedoptima.analysis.curve import Throughput
from fedoptima.analysis.level import MOST_BINS
from fedoptima.analysis.saved_accounts import Unfit
from fedoptima.analysis.summary import Stretch, Summary
from fedoptima.core.aggregation import Buffered
from fedoptima.core.barrier import Barrier
from fedoptima.core.effects import Evaluate, Run
from fedoptima.core.events import Evaluated, JobDone, TimerFired
from fedoptima.core.jobs import FoldedMerge, FullStep, Merge, ReusedStep, ServerStep
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId
from fedoptima.testing.books import running
from fedoptima.testing.toy import ACTIVATION_BYTES, MODEL_BYTES
from fedoptima.testing.world import Description, Device, World
from fedoptima.trace.record import Record
from fedoptima.trace.writer import TraceWriter
from tests.analysis.stories import (
    DATA,
    A,
    B,
    answers,
    connects,
    joins,
    loads,
    merge,
    planned,
    refusal,
    told,
    update,
)
from tests.experiments.runs import CHURN, FLEET, run
from tests.support.fleets import descriptions
from tests.support.rows import ROWS, Options

SUM = 2 * MODEL_BYTES  # in double precision


def account_for(records: list[Record]) -> Summary:
    accounts = Accounts()
    for record in records:
        accounts.observe(record)
    return accounts.summary()


class Audit(World):
    """Compares the accounts with the server's own state after every record."""

    def __init__(self, description: Description, trace: TraceWriter | None = None) -> None:
        super().__init__(description, trace)
        self.accounts = Accounts()
        self._merging: tuple[int, ...] = ()
        self._stepping = 0
        self._kept = 0

    def _observe(self, record: Record) -> None:
        super()._observe(record)
        self.accounts.observe(record)
        if record.node != SERVER:
            return
        if isinstance(record.event, JobDone):
            self._merging, self._stepping = (), 0
        for effect in record.effects:
            if isinstance(effect, Run) and isinstance(effect.job, Merge):
                parts = tuple(part.data.nbytes for part in effect.job.parts)
                self._merging = (SUM,) if isinstance(effect.job, FoldedMerge) else parts
            if isinstance(effect, Run) and isinstance(effect.job, ReusedStep):
                self._kept = effect.job.kept
            elif isinstance(effect, Run) and isinstance(effect.job, ServerStep):
                self._stepping = effect.job.data.nbytes
        if running(self.server):
            self._compare()

    def _compare(self) -> None:
        held, scheduler = self.accounts.server_state, self.server.training.scheduler
        assert held.waiting == scheduler.buffered
        assert held.waiting_bytes == scheduler.buffered * ACTIVATION_BYTES
        assert held.step_bytes == self._stepping
        waiting: list[ModelUpdate] = list(scheduler._models.values())  # type: ignore[attr-defined]
        added_up = 0
        match self.server.training.aggregation:
            case Barrier(folds=True, _pool=pool):
                added_up = SUM if pool else 0
            case Barrier(_pool=pool):
                waiting += [update for update, _ in pool.values()]
            case Buffered(_pool=deltas):
                waiting += [update for _, update, _ in deltas]
        expected = added_up + sum(self._merging) + sum(update.data.nbytes for update in waiting)
        assert held.update_bytes == expected
        assert held.epochs == self.server.progress.epochs
        assert held.version == self.server.version
        memory = self.accounts._memory._total.value
        activations = held.waiting_bytes + self._stepping + self._kept
        assert memory == MODEL_BYTES + activations + expected


@settings(max_examples=40)
@given(description=descriptions())
def test_the_accounts_agree_with_the_server_whatever_happens(description: Description) -> None:
    world = Audit(description)
    world.run()
    summary = world.accounts.summary()
    assert summary.versions == world.server.version
    assert summary.epochs == world.server.progress.epochs
    check_laws(summary)


def check_laws(summary: Summary) -> None:
    for use in summary.usage.values():
        assert use.idle == use.idle_1 + use.idle_2
        assert min(use.busy, use.idle_1, use.idle_2, use.reused) >= 0
        shares = (use.utilisation, use.idle_1_share, use.idle_2_share, use.reused_share)
        assert sum(shares) == pytest.approx(1.0 if use.span else 0.0)
    devices = summary.balance.devices.values()
    assert sum(device.server_samples for device in devices) == summary.server_samples
    assert sum(device.reused_samples for device in devices) == summary.reused_samples
    assert sum(device.device_samples for device in devices) == summary.device_samples
    assert sum(device.updates for device in devices) == summary.staleness.merged
    if summary.balance.merge_weight_jain is not None:
        assert sum(device.merge_share for device in devices) == pytest.approx(1.0)
    for index in (summary.balance.batches_jain, summary.balance.merge_weight_jain):
        assert index is None or 0 < index <= 1
    for device in summary.staleness.devices.values():
        assert sum(device.histogram) == device.merged
        assert device.mean <= device.max
    for level in (summary.memory.total, summary.memory.queue):
        assert len(level.bins) <= MOST_BINS
        assert 0 <= level.mean <= level.peak * (1 + 1e-9)
        assert all(0 <= mean <= level.peak * (1 + 1e-9) for mean in level.bins)
    assert (summary.refused_samples > 0) == (summary.staleness.refused > 0)
    assert summary.trained_epochs >= summary.epochs
    json.loads(summary.to_json())


@pytest.mark.parametrize("method", ["fedoptima", "fifo"])
@pytest.mark.parametrize("cap", [1, 3, 5])
def test_no_more_activations_wait_than_the_cap_allows(method: str, cap: int) -> None:
    fleet = [Device(speed=1.0 + n, bytes_per_second=1e5) for n in range(6)]
    options = Options(cap=cap)
    description = Description(
        ROWS[method](options),
        fleet,
        stop=StopRule(rounds=4),
        server_speed=1.0,
        iterations=20,  # merges go first: with fewer the server would do nothing else
    )
    world = Audit(description)
    world.run()
    memory = world.accounts.summary().memory
    assert memory.queue.peak == cap  # the server is slow: it is reached, and never passed
    assert memory.peak_activations == (cap + 1) * ACTIVATION_BYTES  # and the one being trained on


@pytest.mark.parametrize("method", ROWS)
def test_a_trace_on_disk_says_what_was_seen_live(method: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    writer = TraceWriter(path, {})
    world = Audit(Description(ROWS[method](Options()), [Device(), Device(speed=3.0)]), writer)
    world.run()
    writer.close()
    assert summarise(path) == world.accounts.summary()


@pytest.mark.parametrize("method", ROWS)
def test_accounts_that_were_saved_count_on_as_if_nothing_had_been(method: str) -> None:
    world = World(Description(ROWS[method](Options()), [Device(), Device(speed=3.0)]))
    world.run()
    accounts = Accounts()
    for number, record in enumerate(world.records):
        if number % 50 == 49:
            saved, accounts = json.loads(json.dumps(accounts.save())), Accounts()
            accounts.restore(saved)
        accounts.observe(record)
    assert accounts.summary() == account_for(world.records)


def test_accounts_of_another_version_are_not_taken() -> None:
    saved = Accounts().save()
    for unfit in (None, {}, {**saved, "layout": "of another version"}):
        with pytest.raises(Unfit, match="another version"):
            Accounts().restore(unfit)


@pytest.mark.parametrize(
    "method", ["fl", "fedasync", "fedbuff", "splitfed", "pipar", "oafl", "cse_fsl"]
)
def test_a_result_is_what_its_trace_says(method: str, tmp_path: Path) -> None:
    fleet = {**FLEET, "churn": CHURN}
    asked: list[Summary] = []
    result = run(
        out=tmp_path / "run",
        dry=True,
        method=method,
        fleet=fleet,
        epochs=2.0,
        observer=lambda watch: asked.append(watch.usage.usage()),  # type: ignore[arg-type]
    )
    assert asked
    assert summarise(tmp_path / "run" / "trace.jsonl.gz") == result.summary
    check_laws(result.summary)
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    up, down = written["traffic"]["up"], written["traffic"]["down"]
    kinds = ("activations", "gradients", "models", "control")
    assert sum(up[kind] for kind in kinds) == up["total"] == result.bytes_up
    assert sum(down[kind] for kind in kinds) == down["total"] == result.bytes_down
    assert up["per_epoch"]["total"] == pytest.approx(result.bytes_up / written["trained_epochs"])
    assert written["memory"]["total"]["peak"] == result.server_memory_peak


def trained_on(at: float, device: NodeId, samples: int) -> Record:
    return told(at, device, JobDone(1, FullStep(0), DATA, samples=samples))


def test_figures_of_an_epoch_include_rounds_that_are_not_over_and_leave_out_refused_ones() -> None:
    summary = account_for(
        [
            *joins(0.0, A, B),  # 16 samples together
            planned(0.0),
            trained_on(1.0, A, 8),
            update(1.0, A, "a0", Run(1, merge((A, "a0", 1.0)))),  # half an epoch
            trained_on(2.0, B, 8),
            update(2.0, B, "b0", refusal(B), *answers(B)),
            trained_on(6.0, A, 4),  # on the way to their next updates
            trained_on(6.0, B, 4),
        ]
    )
    assert summary.per_epoch(summary.seconds) == 6.0
    assert (summary.epochs, summary.trained_epochs, summary.refused_samples) == (0.5, 1.0, 8)


def test_an_epoch_of_a_short_asynchronous_run_is_as_long_as_one_of_a_long_run() -> None:
    def seconds_an_epoch(epochs: float) -> float:
        summary = run(dry=True, method="fedasync", epochs=epochs).summary
        return summary.per_epoch(summary.seconds)

    assert seconds_an_epoch(1.0) == pytest.approx(seconds_an_epoch(20.0), rel=0.1)


def memory_with(devices: int, method: str) -> Summary:
    fleet = {
        "server": {"gflops": 0.05},
        "devices": [{"name": "d", "count": devices, "gflops": 0.002, "mbps": 2.0}],
    }
    options = {"name": method, "activation_cap": 4} if method == "fedoptima" else {"name": method}
    return run(dry=True, fleet=fleet, method=options, epochs=2.0).summary


def test_only_methods_with_copies_hold_a_server_side_per_device() -> None:
    for devices in (2, 4):
        shared, copied = memory_with(devices, "fedoptima"), memory_with(devices, "splitfed")
        side = copied.memory.server_side
        assert side > 0
        assert (shared.memory.most_copies, copied.memory.most_copies) == (0, devices)
        model = copied.memory.peak_models - (devices + 1) * side
        assert model > 0  # the device side, as devices are sent it
        assert shared.memory.peak_models > side
        assert shared.memory.queue.peak <= 4


def test_fl_moves_models_and_split_methods_move_activations() -> None:
    fl, split = run(dry=True, method="fl").summary, run(dry=True, method="splitfed").summary
    assert fl.traffic.up.activations == fl.traffic.down.gradients == 0
    assert fl.traffic.up.models > 0
    assert split.traffic.up.activations > 0
    assert split.traffic.down.gradients > 0
    assert fl.traffic.up.gradients == split.traffic.down.activations == 0


def test_figures_per_epoch_are_totals_over_epochs() -> None:
    summary = run(dry=True, method="fl").summary
    use = summary.device_usage
    assert summary.usage_per_epoch(use).idle_2 == pytest.approx(use.idle_2 / summary.epochs)
    assert use.idle_2 == pytest.approx(
        sum(u.idle_2 for node, u in summary.usage.items() if node != SERVER) / 3
    )
    assert summary.server_usage == summary.usage[SERVER]


def test_before_the_first_epoch_nothing_is_divided_by_it() -> None:
    summary = account_for([*connects(0.0, A), planned(0.0), *loads(0.0, 1.0, A)])
    assert summary.epochs == 0
    assert summary.per_epoch(5.0) == 0.0
    assert summary.throughput == Throughput(0.0, 0.0)
    json.loads(summary.to_json())


def trains(at: float, samples: int) -> Record:
    return told(at, A, JobDone(1, FullStep(0), DATA, samples=samples))


def evaluates(at: float, index: int, epochs: float) -> list[Record]:
    return [
        told(at, SERVER, TimerFired("credit"), Evaluate(index, epochs, index)),
        told(at, SERVER, Evaluated(index, ())),
    ]


def test_throughput_is_told_for_every_stretch_between_evaluations() -> None:
    summary = account_for(
        [
            planned(10.0),
            trains(12.0, 6),
            *evaluates(14.0, 1, 1.0),
            trains(15.0, 10),
            *evaluates(19.0, 2, 2.0),
            *evaluates(19.0, 3, 2.0),  # no time has passed
        ]
    )
    assert summary.stretches == (
        Stretch(4.0, 1.0, Throughput(6 / 4, 0.0)),
        Stretch(9.0, 2.0, Throughput(10 / 5, 0.0)),
    )
    assert summary.throughput == Throughput(16 / 9, 0.0)
