"""A run in MLflow: the recipe as parameters, figures at every evaluation, results at the end.

The MLflow server may be far away, or gone. So it is asked for a run before the training begins,
where a mistake can be corrected; all that follows goes through a background thread that training
never waits for. When something cannot be sent, that is said once, and nothing more is sent.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from importlib import import_module

from fedoptima.analysis.metrics import Moment, condition, evaluations
from fedoptima.analysis.summary import Summary
from fedoptima.core.errors import ConfigError
from fedoptima.tracking.background_sender import BackgroundSender
from fedoptima.tracking.tracker import Ending, Subject

# By default MLflow waits for minutes at the start, and sends telemetry.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_FOLDER = "fedoptima.folder"  # the tag by which a resumed run is found
_LONGEST = 6000  # characters of a parameter
_AT_ONCE = 100  # parameters


class MLflow:
    def __init__(self, subject: Subject, uri: str) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        # By name: its types are not here where it is not.
        mlflow, self._entities = import_module("mlflow"), import_module("mlflow.entities")
        self._sent: int | None = None  # evaluations; None: before the first moment
        self._status = "KILLED"
        try:
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            self._run, self._resumed = self._open(subject)
        except Exception as error:  # of many kinds: the store's, the network's, the URI's
            raise ConfigError(
                f"--mlflow {uri}: {_first_line(error)}; is an MLflow server there? "
                "(for example --mlflow http://127.0.0.1:5000)"
            ) from error
        self._began = time.time()
        self._sender = BackgroundSender("MLflow")

    def _open(self, subject: Subject) -> tuple[str, bool]:
        """The id of its run, and whether that was begun before."""
        client, recipe = self._client, subject.recipe
        found = client.get_experiment_by_name(recipe.name)
        experiment = found.experiment_id if found else client.create_experiment(recipe.name)
        folder = str(subject.folder.resolve())
        if subject.resumed and (known := self._find(experiment, folder)):
            client.update_run(known, status="RUNNING")
            return known, True
        tags = {f"fedoptima.{name}": value for name, value in subject.versions.items()}
        tags |= {_FOLDER: folder, "fedoptima.clock": subject.mode.clock}
        name = f"{recipe.method.name}-seed{recipe.seed}"
        run = client.create_run(experiment, run_name=name, tags=tags).info.run_id
        parameters = list(flattened(recipe.model_dump(mode="json")))
        for begin in range(0, len(parameters), _AT_ONCE):
            some = parameters[begin : begin + _AT_ONCE]
            client.log_batch(run, params=[self._entities.Param(key, text) for key, text in some])
        return str(run), False

    def _find(self, experiment: str, folder: str) -> str | None:
        """Compared here: a path may hold quotes, which the server's filters cannot."""
        for run in self._client.search_runs([experiment]):  # the latest first
            if run.data.tags.get(_FOLDER) == folder:
                return str(run.info.run_id)
        return None

    def observe(self, moment: Moment) -> None:
        self._send_new(moment.summary)

    def _send_new(self, summary: Summary) -> None:
        if self._sent is None:
            self._sent = len(summary.curve) if self._resumed else 0
            self._began = time.time() - summary.seconds
        fresh = list(evaluations(summary.curve))[self._sent :]
        for figures in fresh:
            self._sent += 1
            if figures is fresh[-1]:
                figures |= condition(summary)
            at = int(1000 * (self._began + figures["seconds"]))
            self._sender.post(self._send_figures, self._sent, at, figures)

    def _send_figures(self, step: int, at: int, figures: Mapping[str, float]) -> None:
        metric = self._entities.Metric
        rows = [metric(name, float(value), at, step) for name, value in figures.items()]
        self._client.log_batch(self._run, metrics=rows)

    def finish(self, ending: Ending) -> None:
        self._send_new(ending.summary)
        self._status = "FINISHED"
        self._sender.post(self._send_ending, ending)

    def _send_ending(self, ending: Ending) -> None:
        for name, text in ending.tags.items():
            self._client.set_tag(self._run, f"fedoptima.{name}", text)
        for path in ending.files:
            if path.is_file():
                self._client.log_artifact(self._run, str(path))

    def close(self) -> None:
        self._sender.post(self._client.set_terminated, self._run, self._status)
        self._sender.close()


def flattened(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Tables become dotted names; other values than text become JSON, cut where too long."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield f"{prefix}{key}", text[:_LONGEST]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
