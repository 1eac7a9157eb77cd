from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedoptima.analysis.metrics import evaluations
from fedoptima.core.errors import ConfigError
from fedoptima.tracking.mlflow import MLflow, flattened
from fedoptima.tracking.tracker import Ending
from tests.tracking.moments import moment_of, records_of, subject_of


def test_a_recipe_becomes_dotted_names() -> None:
    table = {"seed": 7, "method": {"name": "fl", "x": None}, "fleet": {"devices": [{"mbps": 5}]}}
    assert dict(flattened(table)) == {
        "seed": "7",
        "method.name": "fl",
        "method.x": "null",
        "fleet.devices": '[{"mbps": 5}]',
    }


def test_no_parameter_is_longer_than_mlflow_takes() -> None:
    ((_, text),) = flattened({"devices": ["name"] * 10_000})
    assert len(text) == 6000


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("mlflow", reason="needs pip install 'fedoptima[track]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return tmp_path / "store"


def runs_in(store: Path) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store.as_uri())
    experiment = client.get_experiment_by_name("tiny")
    return list(client.search_runs([experiment.experiment_id]))


def test_a_run_is_logged_with_its_recipe_its_curve_and_its_results(
    store: Path, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    (tmp_path / "summary.json").write_text("{}")
    end = moment_of(records_of("fedoptima")).summary
    log = MLflow(subject_of(tmp_path / "mine"), store.as_uri())
    log.observe(moment_of(records_of("fedoptima")))
    files = (tmp_path / "summary.json", tmp_path / "not there")
    log.finish(Ending(end, {"weights_digest": "abc"}, files))
    log.close()
    (run,) = runs_in(store)
    assert (run.info.run_name, run.info.status) == ("fedoptima-seed7", "FINISHED")
    assert run.data.params["model.name"] == "vgg5"
    assert run.data.params["training.batch_size"] == "100"
    assert run.data.tags["fedoptima.weights_digest"] == "abc"
    assert run.data.tags["fedoptima.torch"] == "2.13"
    client = MlflowClient(tracking_uri=store.as_uri())
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(one.step, one.value) for one in history] == [
        (step, row["accuracy"]) for step, row in enumerate(evaluations(end.curve), 1)
    ]
    assert run.data.metrics["idle/server_type_1_ratio"] == end.server_usage.idle_1_share
    assert [one.path for one in client.list_artifacts(run.info.run_id)] == ["summary.json"]


def test_a_run_that_was_stopped_goes_on_as_the_same_one(store: Path, tmp_path: Path) -> None:
    records, folder = records_of("fedoptima"), tmp_path / "it's mine"
    first = MLflow(subject_of(folder), store.as_uri())
    first.observe(moment_of(records[: len(records) // 2]))
    first.close()
    assert [run.info.status for run in runs_in(store)] == ["KILLED"]
    again = MLflow(subject_of(folder, resumed=True), store.as_uri())
    again.observe(moment_of(records[: len(records) // 2]))
    again.finish(Ending(moment_of(records).summary, {}, ()))
    again.close()
    (run,) = runs_in(store)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["epochs"] == moment_of(records).summary.curve[-1].epochs


def test_a_server_that_is_not_there_is_said_at_the_start(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--mlflow http://127.0.0.1:9: .*is an MLflow server"):
        MLflow(subject_of(tmp_path), "http://127.0.0.1:9")


def test_a_server_that_goes_away_is_said_once(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = MLflow(subject_of(tmp_path / "mine"), store.as_uri())
    shutil.rmtree(store)
    with caplog.at_level(logging.WARNING, "fedoptima"):
        log.observe(moment_of(records_of("fedoptima")))
        log.finish(Ending(moment_of(records_of("fedoptima")).summary, {}, ()))
        log.close()
    said = [message for message in caplog.messages if "MLflow receives no more" in message]
    assert len(said) == 1
