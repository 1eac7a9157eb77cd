"""A run's folder is enough to prove the run: its cores' answers, and its weights, bit for bit."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from torch import nn

from fedoptima.core.errors import ConfigError
from fedoptima.core.events import FailedLate, JobDone
from fedoptima.core.jobs import Merge
from fedoptima.core.types import SERVER
from fedoptima.experiments.given import Given
from fedoptima.experiments.result import weights_digest
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.methods.registry import COMPARED
from fedoptima.trace.device_trace import DeviceTrace
from fedoptima.trace.reader import read_trace
from fedoptima.verification.re_execution import Irreproducible
from fedoptima.verification.replay import re_execute, replay
from tests.experiments.runs import CHURN, FLEET, data, network
from tests.verification.recorded import GIVEN, given, recorded, rewrite

# ---- runs as they are ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", COMPARED)
def test_robust_merging_gives_the_same_effects_and_the_same_weights(
    method: str, tmp_path: Path
) -> None:
    devices = [{"name": "d", "count": 6, "gflops": 0.003, "mbps": 2.0}]
    fleet = {"server": FLEET["server"], "devices": devices, "churn": CHURN}
    recorded(tmp_path / "run", method={"name": method, "robust": "refuse"}, fleet=fleet)
    found = replay(tmp_path / "run", weights=True, **GIVEN)  # type: ignore[arg-type]
    assert found.identical, found


@pytest.mark.parametrize("method", ["fl", "fedasync"])
def test_a_run_that_a_device_leaves_whose_own_loss_is_not_a_number_is_replayed(
    method: str, tmp_path: Path
) -> None:
    images, labels = data()
    images[7] = 3e38  # one sample of one device
    recorded(tmp_path / "run", method=method, train=(images, labels))
    (error,) = (
        record.event.error
        for record in read_trace(tmp_path / "run" / "trace.jsonl.gz")
        if isinstance(record.event, FailedLate)
    )
    assert "loss" in error
    given = {**GIVEN, "train": (images, labels)}
    found = replay(tmp_path / "run", weights=True, **given)  # type: ignore[arg-type]
    assert found.identical, found


@pytest.mark.parametrize("method", ["fedoptima", "fedasync", "fedbuff", "oafl"])
def test_a_limit_that_the_recipe_leaves_open_is_open_again(method: str, tmp_path: Path) -> None:
    """A device that was never away is not refused, however far it is behind."""
    slow, fast = {"name": "slow", "gflops": 0.00025}, {"name": "fast", "gflops": 0.01}
    fleet = {"server": {"gflops": 1.0}, "devices": [slow, fast]}
    recorded(tmp_path / "run", method=method, fleet=fleet, dry=True, epochs=60.0)
    records = read_trace(tmp_path / "run" / "trace.jsonl.gz")
    merges = [r.event.job for r in records if isinstance(r.event, JobDone)]
    parts = [part.device for job in merges if isinstance(job, Merge) for part in job.parts]
    assert "slow" in parts[17:], "the slow device never hands in, or is not 8 K merges behind"
    found = replay(tmp_path / "run")
    assert found.difference is None, found.difference


@pytest.mark.parametrize("fleet", [FLEET, {**FLEET, "churn": CHURN}], ids=["calm", "churn"])
@pytest.mark.parametrize("method", COMPARED)
def test_every_method_gives_the_same_effects_and_the_same_weights(
    method: str, fleet: object, tmp_path: Path
) -> None:
    result = recorded(tmp_path / "run", method=method, fleet=fleet)
    found = replay(tmp_path / "run", weights=True, **GIVEN)
    assert found.difference is None
    assert found.records == result.events
    assert found.weights is not None
    assert found.weights.executed == found.weights.recorded == result.weights_digest
    assert found.identical


@pytest.mark.parametrize("method", ["fl", "splitfed"])
def test_so_does_a_run_whose_updates_are_added_up_as_they_come(method: str, tmp_path: Path) -> None:
    keeps = {"name": method, "on_leave": "keep"}
    recorded(tmp_path / "run", method=keeps, fleet={**FLEET, "churn": CHURN})
    text = gzip.decompress((tmp_path / "run" / "trace.jsonl.gz").read_bytes()).decode()
    assert '["Fold",' in text
    found = replay(tmp_path / "run", weights=True, **GIVEN)  # type: ignore[arg-type]
    assert found.identical, found


def test_so_does_a_run_of_lean_devices_that_do_not_wait_for_merges(tmp_path: Path) -> None:
    method = {"name": "fedoptima", "overlap": True, "train_every": 2, "max_delay": 2}
    result = recorded(tmp_path / "run", method=method, fleet={**FLEET, "churn": CHURN})
    found = replay(tmp_path / "run", weights=True, **GIVEN)  # type: ignore[arg-type]
    assert found.identical, found
    assert result.summary.forwarded_samples


def test_the_weights_come_from_the_jobs_and_not_from_the_result(tmp_path: Path) -> None:
    result = recorded(tmp_path / "run")
    for file in ("model.safetensors", "summary.json", "metrics.csv"):
        (tmp_path / "run" / file).unlink()
    weights = re_execute(tmp_path / "run", given())
    assert weights_digest(weights) == result.weights_digest
    others = Given(network(seed=4), given().dataset)
    assert weights_digest(re_execute(tmp_path / "run", others)) != result.weights_digest
    with pytest.raises(Irreproducible, match="PlanRun, executed again"):
        re_execute(tmp_path / "run", Given(wider(), given().dataset))


def wider() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(128, 3)),
    )


def test_a_dry_run_is_replayed_without_its_data(tmp_path: Path) -> None:
    recorded(tmp_path / "run", dry=True, fleet={**FLEET, "churn": CHURN})
    assert replay(tmp_path / "run").identical
    with pytest.raises(ConfigError, match=r"dry run has no weights.*without weights=True"):
        replay(tmp_path / "run", weights=True)
    with pytest.raises(ConfigError, match="dry run has no weights"):
        re_execute(tmp_path / "run")


def test_a_run_that_was_interrupted_is_replayed_up_to_there(tmp_path: Path) -> None:
    asked = iter(range(100))
    with pytest.raises(Interrupted):
        recorded(tmp_path / "run", interrupted=lambda: next(asked, None) is None)
    found = replay(tmp_path / "run")
    assert found.identical
    assert found.records > 50
    with pytest.raises(ConfigError, match="not come to its end"):
        replay(tmp_path / "run", weights=True)


def test_what_was_given_in_python_has_to_be_given_again_for_the_weights(tmp_path: Path) -> None:
    recorded(tmp_path / "run")
    assert replay(tmp_path / "run").identical
    with pytest.raises(ConfigError, match="model was given in Python"):
        replay(tmp_path / "run", weights=True)
    with pytest.raises(ConfigError, match="data was given in Python"):
        replay(tmp_path / "run", weights=True, model=network())


def test_where_no_run_is_none_is_replayed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run found here"):
        replay(tmp_path)


# ---- runs that are not what they say -------------------------------------------------------------


def test_a_changed_record_is_found_and_shown(tmp_path: Path) -> None:
    recorded(tmp_path / "run")
    trace = tmp_path / "run" / "trace.jsonl.gz"
    lines = [record.to_line() for record in read_trace(trace)]
    index = next(i for i, line in enumerate(lines) if '"GlobalModel",1,' in line)

    def another_version(lines: list[str]) -> list[str]:
        lines[index] = lines[index].replace('"GlobalModel",1,', '"GlobalModel",2,')
        return lines

    rewrite(trace, another_version)
    found = replay(tmp_path / "run", weights=True, **GIVEN)
    assert not found.identical
    assert found.difference is not None
    assert found.difference.number == index + 1
    assert found.difference.what.endswith("message.version")
    assert found.weights is None, "there is no sense in executing jobs that nobody ordered"
    said = json.loads(found.to_json())
    assert not said["identical"]
    assert said["difference"]["record"] == index + 1
    assert (said["difference"]["expected"], said["difference"]["got"]) == ("2", "1")


def test_another_cap_than_the_runs_is_found(tmp_path: Path) -> None:
    recorded(tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    plain = json.loads(config.read_text())
    plain["method"]["activation_cap"] = 1
    del plain["sha256"]  # the change is meant
    config.write_text(json.dumps(plain))
    with pytest.raises(ConfigError, match=r"the run had fedoptima\.activation_cap = 1, its"):
        replay(tmp_path / "run")


def test_other_weights_than_the_jobs_make_are_found(tmp_path: Path) -> None:
    recorded(tmp_path / "run")
    summary = tmp_path / "run" / "summary.json"
    plain = json.loads(summary.read_text())
    summary.write_text(json.dumps({**plain, "weights_digest": "0" * 64}))
    found = replay(tmp_path / "run", weights=True, **GIVEN)
    assert found.difference is None
    assert not found.identical
    summary.write_text("{")
    with pytest.raises(ConfigError, match=r"summary\.json: damaged"):
        replay(tmp_path / "run", weights=True, **GIVEN)


# ---- as a real run leaves it ---------------------------------------------------------------------


def test_files_of_devices_whose_clocks_are_off_give_the_same_weights(tmp_path: Path) -> None:
    result = recorded(tmp_path / "run", fleet={**FLEET, "churn": CHURN})
    trace = tmp_path / "run" / "trace.jsonl.gz"
    records = list(read_trace(trace))
    for number, node in enumerate(sorted({r.node for r in records} - {SERVER})):
        own = [r.to_line() for r in records if r.node == node]
        off = 0.05 * (number - 1)
        device = DeviceTrace(tmp_path / "run" / "devices" / f"{node}.jsonl.gz")
        device.append_restamped(own, node, lambda at, off=off: max(0.0, at + off))  # type: ignore[misc]
    mine = [r.to_line() for r in records if r.node == SERVER]
    rewrite(trace, lambda _: mine)
    merged = list(read_trace(trace))
    assert len(merged) == len(records)
    assert merged != records, "the clocks agree"
    assert weights_digest(re_execute(tmp_path / "run", given())) == result.weights_digest
