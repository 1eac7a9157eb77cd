"""Simulated runs: the public functions `simulate` and `resume`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Literal

from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.data.layouts import ReadingProgress, quiet
from fedoptima.display.silent import Watch
from fedoptima.display.views import run_view
from fedoptima.display.wording import speaks_python
from fedoptima.experiments.assembly import Simulated
from fedoptima.experiments.dry_setup import prepare_dry
from fedoptima.experiments.extension import extend as extend_run
from fedoptima.experiments.given import Given, given_data, given_method
from fedoptima.experiments.given_task import given_task
from fedoptima.experiments.given_training import given_training
from fedoptima.experiments.parts import Options, recipe_from
from fedoptima.experiments.python_call import resume_call, stoppable
from fedoptima.experiments.result import Result
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.simulated_run import (
    SimulationObserver,
    SimulationWatch,
    run_experiment,
)
from fedoptima.methods.registry import Builder
from fedoptima.named_code import allow
from fedoptima.trace.description import Mode
from fedoptima.trace.run_folder import RunFiles

if TYPE_CHECKING:  # they take torch, and a dry run may do without
    from torch import nn

    from fedoptima.data.dataset import Dataset
    from fedoptima.tasks.task import Loss, Task

# Torch's generator and modes are the process's: trainings in several of its threads take turns.
_TRAINING = RLock()


@speaks_python()
def simulate(
    recipe: Recipe | str | Path | None = None,
    *,
    model: nn.Module | str | Options | None = None,
    train: object = None,
    test: object = None,
    data: Dataset | str | Options | None = None,
    fleet: str | Options | None = None,
    method: Builder | str | Options | None = None,
    training: Options | None = None,
    split: Options | None = None,
    stop: Options | None = None,
    epochs: float | None = None,
    seed: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    workers: int | Literal["auto"] | None = None,
    task: Task | str | Options | None = None,
    loss: Loss | None = None,
    out: str | Path | None = None,
    dry: bool = False,
    checkpoint_every: float = 60.0,
    progress: bool | None = None,
    observer: SimulationObserver | None = None,
    reading: ReadingProgress | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Result:
    """Train on a virtual clock and return the trained model, its curve and every node's idle time.

    Either a recipe, or its parts; parts given with a recipe replace the recipe's, `training` and
    `split` key by key. A part is what the recipe's table would hold: a name (`fleet="testbed_a"`,
    `method="fl"`) or a mapping (`training={"batch_size": 50}`).

    Ctrl-C stops a run that has a folder (`out`) at a point from which `resume` continues; a second
    one ends it at once.

    Args:
        recipe: A recipe file, or a `Recipe`.
        model: Any `nn.Module`, or the name of a model and its options.
        train: The training data: `(inputs, labels)`, a dataset, a DataLoader, an iterable, or a
            dict of these by device.
        test: The test data, in any of these forms except by device.
        data: The name of a data set, or a mapping with its options. With `train`: options of
            data given in Python, such as `{"partition": {"kind": "iid"}}`.
        fleet: The name of a fleet, or a mapping with `server` and `devices`.
        method: The name of a method, or a function that makes a `fedoptima.methods.Method`; with
            options, a mapping of its `name` (or the function) and them.
        training: Batch size, optimisers, schedule and the like.
        split: Where the model is cut; by default that is planned.
        stop: When the run ends: `epochs`, `rounds`, `hours`, `target_accuracy`, `patience`; or
            `metric` and `target`.
        epochs: Short for `stop={"epochs": ...}`.
        seed: Of all random numbers.
        device: Where to compute: `"cpu"`, `"cuda"`, `"cuda:1"`.
        threads: torch threads; 1 by default, so that results do not depend on the machine.
        workers: Processes for the tensor work; the result is the same, bit for bit.
        task: What is learned: the name of a ready one (`"regression"`, `"dense"`), a mapping with
            its options, or a `Task`; by default one class for each sample.
        loss: A function of outputs and labels, in place of the task's own.
        out: A new or empty folder for the run's files. With it, a run can be resumed.
        dry: Simulate the timing only; nothing is trained.
        checkpoint_every: Wall-clock seconds between two checkpoints; only with `out`.
        progress: Show it, on stderr or in the notebook. By default where stderr is a terminal, or
            in a notebook.
        observer: Called about ten times a second during the run, and once at the end.
        reading: Called while data is read, with what, how much is done, and how much there is.
        interrupted: Called between events. If it returns True, a checkpoint is saved and
            `Interrupted` is raised. With it, handling Ctrl-C is up to the caller.

    Returns:
        What came out. It prints as a short table, and shows its curve in a notebook.

    Raises:
        ConfigError: An argument cannot work; the message says which, and how to fix it.
        FedOptimaError: The run failed, for example because the loss is not finite.
        Interrupted: `interrupted` returned True.
        KeyboardInterrupt: Ctrl-C; the message says how to resume the run.

    Example:
        ```python
        import fedoptima

        result = fedoptima.simulate(
            model="vgg5", data="digits", fleet="testbed_a", method="fedoptima", epochs=2
        )
        print(result.accuracy, result.server_utilisation)
        ```
    """
    resolved, given = recipe_from(
        recipe,
        "simulate()",
        model=model,
        train=train,
        test=test,
        data=data,
        fleet=fleet,
        method=method,
        training=training,
        split=split,
        stop=stop,
        epochs=epochs,
        seed=seed,
        device=device,
        threads=threads,
        workers=workers,
        task=task,
        loss=loss,
    )

    def way_on() -> str:
        begun = out is not None and RunFiles(Path(out)).begun
        return resume_call("resume", out, resolved, given) if begun and out is not None else ""

    with (
        stoppable(interrupted, out, way_on) as asked,
        run_view(resolved, progress) as view,
    ):
        return start(
            resolved,
            given,
            out=out,
            dry=dry,
            checkpoint_every=checkpoint_every,
            observer=_both(view.training, observer),
            reading=reading or view.reading,
            interrupted=asked,
        )


def start(
    recipe: Recipe,
    given: Given,
    *,
    out: str | Path | None,
    dry: bool,
    checkpoint_every: float,
    observer: SimulationObserver | None,
    reading: ReadingProgress,
    interrupted: Callable[[], bool],
) -> Result:
    """A new run of a complete recipe; see `simulate`."""
    with nullcontext() if dry else _TRAINING:
        experiment = _prepare(recipe, given, reading, dry=dry)
        directory = None
        if out is not None:
            directory = RunDirectory.create(Path(out), experiment.describe(dry=dry))
        try:
            return run_experiment(
                experiment,
                directory=directory,
                dry=dry,
                checkpoint_every=checkpoint_every,
                observer=observer,
                interrupted=interrupted,
            )
        except ConfigError as error:
            if directory is not None:
                directory.give_up(str(error))
            raise


def _prepare(recipe: Recipe, given: Given, reading: ReadingProgress, *, dry: bool) -> Simulated:
    if dry and (stored := prepare_dry(recipe, given)) is not None:
        return stored
    from fedoptima.experiments.setup import prepare  # takes torch

    return prepare(recipe, given, reading, dry=dry)


@speaks_python()
def resume(
    directory: str | Path,
    *,
    model: nn.Module | None = None,
    train: object = None,
    test: object = None,
    method: Builder | Options | None = None,
    task: Task | Options | None = None,
    training: Options | None = None,
    loss: Loss | None = None,
    extend: Options | None = None,
    allow_modules: Sequence[str] = (),
    workers: int | Literal["auto"] = "auto",
    checkpoint_every: float = 60.0,
    progress: bool | None = None,
    observer: SimulationObserver | None = None,
    reading: ReadingProgress | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Result:
    """Resume a run that was killed or stopped; it ends as if it had not been interrupted.

    If the run is over already, its result is read from the folder; with `extend` it goes on
    longer. What was given to `simulate` as Python objects has to be given again.

    Args:
        directory: The run's folder: what was `out`.
        model: The model, if it was given as an `nn.Module`.
        train: The training data, if it was given in Python.
        test: The test data, if it was given in Python.
        method: The function that makes the method, if one was given.
        task: The task, if it was given as a `Task` or with functions.
        training: Optimisers and schedules that were given as functions, at their places.
        loss: The loss, if one was given.
        extend: Other values of keys of `stop` (`{"epochs": 200}`): the run goes on until then,
            whether it was over or not.
        allow_modules: The packages from which code that the run's files name
            (`"package.module:function"`) may be loaded.
        workers: As in `simulate`.
        checkpoint_every: As in `simulate`.
        progress: As in `simulate`.
        observer: As in `simulate`.
        reading: As in `simulate`.
        interrupted: As in `simulate`.

    Returns:
        What came out, the same as if the run had not been interrupted.

    Raises:
        ConfigError: There is no run in the folder, or something has to be given again.
        FedOptimaError: The run failed.
        Interrupted: `interrupted` returned True.
        KeyboardInterrupt: Ctrl-C, as in `simulate`.

    Example:
        ```python
        result = fedoptima.resume("runs/mine", model=model, train=train, test=test)
        ```
    """
    run, recipe, _ = RunDirectory.open(Path(directory))
    if run.over and not extend:
        return run.read_result()
    code, learned = allow(allow_modules), given_task(task)
    data = given_data(train, test, recipe.data.options, lambda: learned.of(recipe, loss, code))
    _, methods = given_method(method)
    _, functions = given_training(training)
    given = Given(model, data, loss, code, methods, learned.given, functions)
    with (
        stoppable(
            interrupted, directory, lambda: resume_call("resume", directory, recipe, given)
        ) as asked,
        run_view(recipe, progress) as view,
    ):
        return go_on(
            run.path,
            given,
            extend=extend,
            workers=workers,
            checkpoint_every=checkpoint_every,
            observer=_both(view.training, observer),
            reading=reading or view.reading,
            interrupted=asked,
        )


def go_on(
    directory: Path,
    given: Given,
    *,
    extend: Options | None = None,
    workers: int | Literal["auto"],
    checkpoint_every: float,
    observer: SimulationObserver | None,
    reading: ReadingProgress = quiet,
    interrupted: Callable[[], bool],
) -> Result:
    """A run that has begun; see `resume`."""
    run, recipe, dry = RunDirectory.open(directory)
    if run.over and not extend:
        return run.read_result()
    run.check_resumed_by(Mode.SIMULATED)
    given.check(recipe, run.path)
    if extend:
        recipe = extend_run(run, recipe, extend)
    recipe = recipe.model_copy(update={"workers": workers})
    with nullcontext() if dry else _TRAINING:
        experiment = _prepare(recipe, given, reading, dry=dry)
        if not dry:
            run.check_material(experiment.material)
        if extend:  # not earlier: what was not possible leaves the run as it was
            run.extend(recipe)
        return run_experiment(
            experiment,
            directory=run,
            dry=dry,
            resume=True,
            checkpoint_every=checkpoint_every,
            observer=observer,
            interrupted=interrupted,
        )


def _both(view: Callable[[Watch], None], observer: SimulationObserver | None) -> SimulationObserver:
    if observer is None:
        return view
    chosen = observer

    def both(watch: SimulationWatch) -> None:
        view(watch)
        chosen(watch)

    return both
