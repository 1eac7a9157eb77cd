"""Was a run what its recipe and this code make of it? Asked of its folder alone.

`replay` feeds the recorded events into fresh cores; `re_execute` executes the recorded jobs on
fresh engines. Both serve simulated and real runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor, nn

from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.server import ServerCore
from fedoptima.display.views import counting
from fedoptima.display.wording import speaks_python
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.server import ServerEngine
from fedoptima.experiments.device_engines import device_engine
from fedoptima.experiments.given import Given, given_data, given_method
from fedoptima.experiments.given_task import given_task
from fedoptima.experiments.given_training import given_training
from fedoptima.experiments.method_setup import build_method, server_settings
from fedoptima.experiments.result import weights_digest
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.setup import prepare
from fedoptima.methods.registry import Builder
from fedoptima.named_code import NO_CODE, allow
from fedoptima.tasks.task import Loss, Task
from fedoptima.trace.description import Mode, RunDescription
from fedoptima.trace.reader import read_header, read_trace
from fedoptima.trace.record import Record, RecordProgress
from fedoptima.verification.core_replay import Verdict, replay_trace
from fedoptima.verification.re_execution import Irreproducible, ReExecution, Workshop, count_uses

_PROGRESS_EVERY = 500  # records


@dataclass(frozen=True)
class Weights:
    """Fingerprints of a run's final weights."""

    recorded: str
    executed: str  # empty if the jobs could not be executed again
    problem: str = ""  # why not

    @property
    def identical(self) -> bool:
        return self.recorded == self.executed


@dataclass(frozen=True)
class Replay(Verdict):
    weights: Weights | None = None  # not asked for, or the cores differ already

    @property
    def identical(self) -> bool:
        return self.difference is None and (self.weights is None or self.weights.identical)

    def to_json(self) -> str:
        plain = {
            "identical": self.identical,
            "records": self.records,
            "nodes": dict(self.nodes),
            "gaps": [asdict(gap) for gap in self.gaps],
            "difference": None if self.difference is None else self.difference.plain(),
            "weights": None if self.weights is None else asdict(self.weights),
        }
        return json.dumps(plain, indent=1)


@speaks_python()
def replay(
    directory: str | Path,
    *,
    weights: bool = False,
    model: nn.Module | None = None,
    train: object = None,
    test: object = None,
    method: Builder | Mapping[str, object] | None = None,
    task: Task | None = None,
    training: Mapping[str, object] | None = None,
    loss: Loss | None = None,
    allow_modules: Sequence[str] = (),
    progress: RecordProgress | bool | None = None,
) -> Replay:
    """Feed a run's recorded events into fresh cores, and compare what they do with the record.

    Args:
        directory: The run's folder.
        weights: Also execute all jobs again, which takes as long as the run's computation did. What
            was given to the run as Python objects has to be given again for that.
        model: The model, if it was given as an `nn.Module`.
        train: The training data, if it was given in Python.
        test: The test data, if it was given in Python.
        method: The function that makes the method, if one was given; also without `weights`.
        task: The task, if it was given as a `Task` or with functions.
        training: Optimisers and schedules that were given as functions, at their places.
        loss: The loss, if one was given.
        allow_modules: The packages from which code that the run's files name
            (`"package.module:function"`) may be loaded.
        progress: Show it on stderr; by default where that is a terminal. Or a function, which is
            called with what is done and the number of records.

    Returns:
        Whether all is identical, the first difference if not, and the gaps where records could
        not be written.

    Raises:
        ConfigError: There is no run in the folder, or something has to be given again.

    Example:
        ```python
        assert fedoptima.replay("runs/mine").identical
        ```
    """
    code, learned = allow(allow_modules), given_task(task)

    def objects(recipe: Recipe) -> Given:
        options = recipe.data.options
        data = given_data(train, test, options, lambda: learned.of(recipe, loss, code))
        methods, functions = given_method(method)[1], given_training(training)[1]
        return Given(model, data, loss, code, methods, learned.given, functions)

    with counting(progress) as count:
        return _replay(
            Path(directory),
            weights,
            objects,
            count,
        )


def _replay(
    directory: Path,
    weights: bool,
    objects: Callable[[Recipe], Given],
    progress: RecordProgress,
) -> Replay:
    run, recipe, dry = RunDirectory.open(directory)
    if read_header(run.trace)["schema"] == 1:
        raise ConfigError(
            f"{run.trace}: a trace of fedoptima 0.1.0, whose server decided some things otherwise "
            "(what counts as an epoch, when a run ends): replay it with that version"
        )
    given = objects(recipe)
    recorded = _recorded_digest(run, dry) if weights else ""
    records = _counted(read_trace(run.trace, gaps=False), "replaying", progress)
    begun = recipe.model_copy(update={"stop": run.first_stop})  # what it was extended to is told
    verdict = replay_trace(records, lambda: _server_core(run.description, begun, given))
    if not weights or verdict.difference is not None:
        return Replay(verdict.records, verdict.nodes, verdict.difference, verdict.gaps)
    try:
        executed, problem = weights_digest(re_execute(directory, given, progress)), ""
    except Irreproducible as error:
        executed, problem = "", str(error)
    found = Weights(recorded, executed, problem)
    return Replay(verdict.records, verdict.nodes, None, verdict.gaps, found)


def _recorded_digest(run: RunDirectory, dry: bool) -> str:
    if dry:
        raise ConfigError(f"{run.path}: a dry run has no weights; replay it without --weights")
    if not run.over:
        raise ConfigError(
            f"{run.path}: this run has not come to its end, so there are no weights to compare "
            "with; replay it without --weights"
        )
    try:
        return str(json.loads(run.summary.read_text())["weights_digest"])
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{run.summary}: damaged ({error})") from error


def _server_core(run: RunDescription, recipe: Recipe, given: Given) -> ServerCore:
    """The server as it was when the run began.

    From the recipe, not from the description's options: those have figures where the recipe leaves
    some open, and an open limit may mean more than its figure (``max_delay``).
    """
    patience = recipe.deploy.patience if run.mode is Mode.NETWORK else None
    settings = server_settings(recipe, run.starts_with, patience=patience)
    method = build_method(recipe, run.devices, given)
    for option, value in run.options.items():
        if (ours := method.resolved.get(option, value)) != value:
            raise ConfigError(
                f"the run had {run.method}.{option} = {value!r}, its recipe gives {ours!r}: "
                "config.json was changed, or this version has another default; replay it with the "
                "version that made it"
            )
    return ServerCore(method, settings)


def re_execute(
    directory: str | Path, given: Given | None = None, progress: RecordProgress = lambda *_: None
) -> dict[str, Tensor]:
    """The final weights of a run, both sides joined, from its recorded jobs alone.

    `Irreproducible` if a job comes to something else than recorded, or cannot be executed.
    """
    run, recipe, dry = RunDirectory.open(Path(directory))
    if dry:
        raise ConfigError(f"{run.path}: a dry run has no weights")
    given = given or Given(code=NO_CODE)
    _check_given(run, recipe, given)
    uses = count_uses(read_trace(run.trace, gaps=False))
    with deterministic(recipe.threads, recipe.training.precision):
        server, workshop = _workshop(run, recipe, given)
        records = _counted(read_trace(run.trace, gaps=False), "executing the jobs again", progress)
        ReExecution(workshop, uses).run(records)
        return server.export()


def _counted(records: Iterable[Record], what: str, progress: RecordProgress) -> Iterator[Record]:
    for number, record in enumerate(records):
        if number % _PROGRESS_EVERY == 0:
            progress(what, number)
        yield record


def _check_given(run: RunDirectory, recipe: Recipe, given: Given) -> None:
    given.check(recipe, run.path)
    if recipe.fleet is None:
        raise ConfigError(
            f"{run.path}: this run's devices brought their own data, which is not here; "
            "replay it without --weights"
        )


def _workshop(run: RunDirectory, recipe: Recipe, given: Given) -> tuple[ServerEngine, Workshop]:
    experiment = prepare(recipe, given)
    devices = experiment
    over_network = run.description.mode is Mode.NETWORK
    if over_network and recipe.device != "cpu":  # which is the server's alone then
        devices = prepare(recipe.model_copy(update={"device": "cpu"}), given)
    server = ServerEngine(experiment.workload, deferred=not over_network)
    engines = {
        node: device_engine(recipe, devices.workload, node, rows, deferred=not over_network)
        for node, rows in devices.shares.items()
    }
    return server, Workshop(server, experiment.workload.compute, engines, devices.workload.compute)
