"""Activation reuse in whole runs: what it does, what it leaves alone, and what is counted."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from fedoptima import replay, sweep
from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.formatting import percent
from fedoptima.analysis.metrics import Moment, condition, metrics
from fedoptima.comparison.cases import Case
from fedoptima.comparison.rows import read_run
from fedoptima.core.errors import ConfigError
from fedoptima.core.events import JobDone
from fedoptima.core.jobs import ReusedStep, ServerStep
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record
from tests.experiments.runs import CHURN, FLEET, data, network, run, set_up

DEMO = Path(__file__).parents[2] / "recipes" / "demo_digits.toml"
REUSE = {"name": "fedoptima", "reuse": {"batches": 8, "uses": 2}}
SILENT = {
    **FLEET,
    "changes": [
        {"at": 0.3, "device": name, "kind": "leave"} for name in ("slow", "middle", "fast")
    ],
}


def records_of(method: object, **changes: object) -> list[Record]:
    records: list[Record] = []
    set_up(records, dry=True, method=method, **changes).simulation.run()
    return records


def steps(records: list[Record]) -> tuple[list[ServerStep], list[ReusedStep]]:
    jobs = [r.event.job for r in records if r.node == SERVER and isinstance(r.event, JobDone)]
    again = [job for job in jobs if isinstance(job, ReusedStep)]
    return [j for j in jobs if isinstance(j, ServerStep) and not isinstance(j, ReusedStep)], again


def test_an_idle_server_trains_again_and_rests_less() -> None:
    plain, reused = run(method="fedoptima", dry=True), run(method=REUSE, dry=True)
    assert plain.summary.reused_samples == 0
    assert reused.summary.reused_samples > 0
    usage = reused.summary.server_usage
    assert usage.reused > 0
    assert usage.idle < plain.summary.server_usage.idle
    assert usage.span == pytest.approx(usage.busy + usage.reused + usage.idle)


def test_the_devices_of_a_run_hardly_notice() -> None:
    """What they send waits for one step at most, so they do about the same."""
    fresh, again = steps(records_of(REUSE))
    plain, _ = steps(records_of({"name": "fedoptima"}))
    assert again
    assert len(fresh) == pytest.approx(len(plain), rel=0.1)
    assert len({step.data.id for step in fresh}) == len(fresh)


def test_fresh_and_reused_batches_are_counted_apart() -> None:
    records, accounts = records_of(REUSE), Accounts()
    for record in records:
        accounts.observe(record)
    summary = accounts.summary()
    fresh, again = steps(records)
    done = [r.event for r in records if r.node == SERVER and isinstance(r.event, JobDone)]
    of_reused = sum(e.samples for e in done if isinstance(e.job, ReusedStep))
    assert summary.reused_samples == of_reused > 0
    assert summary.server_samples == sum(e.samples for e in done) - of_reused
    assert summary.work.used == summary.server_samples
    devices = summary.balance.devices.values()
    assert sum(device.batches for device in devices) == len(fresh)
    assert sum(device.reused_batches for device in devices) == len(again)
    assert sum(device.reused_samples for device in devices) == of_reused
    assert summary.curve[-1].reused_samples <= of_reused
    assert summary.throughput.reused == pytest.approx(of_reused / summary.seconds)
    assert len(fresh) <= sum(summary.staleness.activation_ages) <= len(fresh) + 1
    batch = max(step.data.nbytes for step in fresh)
    assert 0 < summary.memory.peak_kept <= 8 * batch


def test_a_server_that_nothing_comes_to_any_more_soon_rests() -> None:
    """The uses bound it: the run ends by its time limit, with few steps after the last batch."""
    records = records_of(REUSE, fleet=SILENT, stop={"hours": 60 / 3600})
    fresh, again = steps(records)
    last = max(r.at for r in records if isinstance(r.event, JobDone) and r.event.job is fresh[-1])
    after = [r for r in records if r.at > last and isinstance(r.event, JobDone)]
    assert again
    assert len(after) <= 8 * 2
    assert records[-1].at >= 60.0


def test_what_a_device_sent_is_forgotten_when_it_leaves_if_so_set() -> None:
    rule = {"batches": 64, "uses": 9}
    kept, forgotten = (
        steps(
            records_of(
                {"name": "fedoptima", "reuse": {**rule, "on_leave": on_leave}},
                fleet=SILENT,
                stop={"hours": 1 / 3600},
            )
        )[1]
        for on_leave in ("keep", "forget")
    )
    assert len(forgotten) < len(kept)


def test_exporters_have_both_figures() -> None:
    accounts = Accounts()
    for record in records_of(REUSE):
        accounts.observe(record)
    summary = accounts.summary()
    found = {metric.name: metric.values for metric in metrics(Moment(summary, (), None))}
    usage = summary.server_usage
    assert found["fedoptima_node_busy_seconds_total"][SERVER,] == usage.busy
    assert found["fedoptima_node_reused_seconds_total"][SERVER,] == usage.reused > 0
    assert found["fedoptima_samples_total"]["server",] == summary.server_samples
    assert found["fedoptima_samples_reused_total"][()] == summary.reused_samples > 0
    again = found["fedoptima_device_batches_reused_total"]
    assert sum(again.values()) == len(steps(records_of(REUSE))[1])
    assert condition(summary)["busy/server_reused_ratio"] == usage.reused_share


def test_every_table_has_both_figures(tmp_path: Path) -> None:
    path = tmp_path / "run"
    result = run(method=REUSE, dry=True, out=path)
    usage, plain = result.summary.server_usage, json.loads((path / "summary.json").read_text())
    assert plain["usage"][SERVER]["utilisation"] == usage.utilisation
    assert plain["usage"][SERVER]["reused_share"] == usage.reused_share
    assert plain["reused_samples"] == result.summary.reused_samples
    assert plain["throughput"]["reused"] == result.summary.throughput.reused
    shares = f"server {percent(usage.utilisation)} and {percent(usage.reused_share)} reused"
    assert shares in str(result)
    last = list(csv.DictReader((path / "metrics.csv").open()))[-1]
    assert 0 < int(last["reused_samples"]) <= result.summary.reused_samples
    figures = read_run(Case("fedoptima"), 1, plain).figures
    assert figures is not None
    assert figures.server_reused_share == usage.reused_share
    assert figures.server_idle_share == pytest.approx(usage.idle / usage.span)


@pytest.mark.parametrize("name", ["fedoptima", "cse_fsl"])
def test_a_run_with_reuse_is_replayed_to_the_same_weights(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    method = {"name": name, "reuse": {"batches": 4, "uses": 3, "max_age": 2}}
    result = run(method=method, fleet={**FLEET, "churn": CHURN}, out=path)
    assert result.summary.reused_samples > 0
    given = {"model": network(), "train": data(), "test": data(48, seed=1)}
    assert replay(path, weights=True, **given).identical


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reuse": {"uses": 0}}, r"method\.reuse\.uses = 0: input should be greater"),
        ({"reuse": {"batch": 3}}, r"method\.reuse\.batch: unknown key; did you mean 'batches'"),
        ({"reuse": 1}, r"method\.reuse = 1: must be a table, of batches"),
        ({"reuse": {}, "auxiliary": "none"}, r"method\.reuse: devices that wait for the server"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        records_of({"name": "fedoptima", **options})


def test_a_sweep_compares_runs_with_and_without_it() -> None:
    table = sweep(
        DEMO,
        vary={"method.reuse": [False, {"batches": 16, "uses": 2}], "fleet.server.gflops": [50]},
        methods=["fedoptima"],
        epochs=1,
        dry=True,
    )
    off, on = (row.mean for row in table.rows)
    assert off is not None
    assert on is not None
    assert (off.reused_throughput, off.server_reused_share) == (0.0, 0.0)
    assert on.reused_throughput
    assert "server reused, %" in str(table)


@pytest.mark.parametrize(("name", "given"), [("fedoptima", {}), ("cse_fsl", True)])
def test_a_description_says_what_was_kept(name: str, given: object, tmp_path: Path) -> None:
    run(method={"name": name, "reuse": given}, dry=True, out=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["method"]["reuse"] == {
        "batches": 64,
        "uses": 4,
        "max_age": None,
        "on_leave": "keep",
    }
