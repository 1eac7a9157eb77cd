"""Methods x seeds on one recipe: the public functions `compare` and `resume_comparison`.

All runs share what the recipe and the seed fix: initial weights, partition, augmentation, schedule,
fleet, and the split of those methods that split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from torch import nn

from fedoptima.comparison.folder import read_about
from fedoptima.comparison.many_runs import RESUME, Execution, On, run_missing, run_new, watched
from fedoptima.comparison.pool import PoolObserver
from fedoptima.comparison.result import Comparison
from fedoptima.comparison.spec import Methods, describe
from fedoptima.config.schema import Recipe
from fedoptima.data.dataset import Dataset
from fedoptima.display.wording import speaks_python
from fedoptima.experiments.given import Given, given_data, given_methods
from fedoptima.experiments.given_task import given_task
from fedoptima.experiments.given_training import given_training
from fedoptima.experiments.parts import Options, recipe_from
from fedoptima.named_code import allow
from fedoptima.tasks.task import Loss, Task
from fedoptima.trace.plain_files import refuse_links


@speaks_python(RESUME)
def compare(
    recipe: Recipe | str | Path | None = None,
    *,
    methods: Methods = "paper",
    seeds: int | Sequence[int] | None = None,
    options: Mapping[str, object] | None = None,
    model: nn.Module | str | Options | None = None,
    train: object = None,
    test: object = None,
    data: Dataset | str | Options | None = None,
    fleet: str | Options | None = None,
    training: Options | None = None,
    split: Options | None = None,
    stop: Options | None = None,
    epochs: float | None = None,
    device: str | None = None,
    threads: int | None = None,
    workers: int | Literal["auto"] | None = None,
    task: Task | str | Options | None = None,
    loss: Loss | None = None,
    jobs: int | None = None,
    on: On = "processes",
    target: float | None = None,
    dry: bool = False,
    out: str | Path | None = None,
    checkpoint_every: float = 60.0,
    command: str | None = None,
    progress: bool | None = None,
    observer: PoolObserver | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Comparison:
    """Train with several methods on the same recipe and compare their figures.

    Either a recipe, or its parts, as in `simulate`: also a model and data of your own. All runs
    begin with the same weights, data partition, fleet and split. A run that fails is reported, and
    the others continue.

    Runs are executed in processes of this machine. Those are forked where a model or data are
    given as Python objects, so anything may be given. Where that cannot be (torch sees a GPU,
    `threads` is above 1, or gRPC is loaded) objects are pickled, and a script calls this under
    `if __name__ == "__main__":`, as it does without such objects.

    Args:
        recipe: A recipe file, or a `Recipe`.
        methods: Their names, or functions that make a `fedoptima.methods.Method`, which the
            processes of the runs import by name; `"paper"`: FedOptima and the paper's six
            baselines; or `"all"`.
        seeds: How many, counting up from the recipe's seed; or a list of seeds.
        options: For those methods that have them, or for one alone
            (`{"pipar.micro_batches": 10}`). The recipe's own method options go only to the method
            it names.
        model: As in `simulate`. An `nn.Module` begins with the same weights whatever the seed.
        train: As in `simulate`.
        test: As in `simulate`.
        data: As in `simulate`.
        fleet: As in `simulate`.
        training: As in `simulate`.
        split: As in `simulate`.
        stop: As in `simulate`.
        epochs: As in `simulate`.
        device: As in `simulate`.
        threads: As in `simulate`.
        workers: As in `simulate`, of each run; 1 by default, because runs use all cores already.
        task: As in `simulate`.
        loss: As in `simulate`.
        jobs: Runs at a time; by default one per core. Results do not depend on it.
        on: `"processes"`, or `"ray"` (or a `RayShare`) for a Ray cluster.
        target: Report the time to this accuracy; by default 99 % of FedOptima's best.
        dry: Simulate the timing only; nothing is trained.
        out: A new or empty folder. Every run leaves its own folder in it, and
            `resume_comparison` resumes it after a kill.
        checkpoint_every: Wall-clock seconds between two checkpoints of a run.
        command: The command that the table names as its origin; by default this function.
        progress: Show it, as in `simulate`.
        observer: Called about ten times a second with the progress of each run.
        interrupted: Called as often; if it returns True, all runs save a checkpoint and
            `Interrupted` is raised. With it, handling Ctrl-C is up to the caller.

    Returns:
        One row per method. It prints as a table, and shows its curves in a notebook.

    Raises:
        ConfigError: An argument cannot work; the message says which, and how to fix it.
        Interrupted: `interrupted` returned True.
        KeyboardInterrupt: Ctrl-C; with `out`, the message says how to resume.

    Example:
        ```python
        comparison = fedoptima.compare(
            model=model, train=train, test=test, fleet="testbed_a", epochs=10,
            methods=["fedoptima", "fl"], seeds=3, out="runs/mine",
        )
        print(comparison)
        ```
    """
    base, given = recipe_from(
        recipe,
        "compare()",
        several=True,
        model=model,
        train=train,
        test=test,
        data=data,
        fleet=fleet,
        training=training,
        split=split,
        stop=stop,
        epochs=epochs,
        device=device,
        threads=threads,
        workers=workers,
        task=task,
        loss=loss,
    )
    given = replace(given, methods=given_methods(methods))
    about = describe(
        base,
        given,
        methods=methods,
        seeds=seeds,
        options=options or {},
        dry=dry,
        target=target,
        command=command,
    )
    execution = Execution(jobs, on, checkpoint_every)
    with watched(execution, base, given, out, progress, observer, interrupted) as execution:
        return run_new(about, given, execution, out)


@speaks_python(RESUME)
def resume_comparison(
    directory: str | Path,
    *,
    model: nn.Module | None = None,
    train: object = None,
    test: object = None,
    methods: Methods = (),
    task: Task | Options | None = None,
    training: Options | None = None,
    loss: Loss | None = None,
    jobs: int | None = None,
    on: On = "processes",
    allow_modules: Sequence[str] = (),
    checkpoint_every: float = 60.0,
    progress: bool | None = None,
    observer: PoolObserver | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Comparison:
    """Keep the runs that are finished, resume those that are not, start those that are missing.

    Of a comparison or a sweep. What was given to it as Python objects has to be given again.

    Args:
        directory: Its folder: what was `out`.
        model: The model, if it was given as an `nn.Module`.
        train: The training data, if it was given in Python.
        test: The test data, if it was given in Python.
        methods: Those that were given as functions of a script or a notebook.
        task: The task, if it was given as a `Task` or with functions.
        training: Optimisers and schedules that were given as functions, at their places.
        loss: The loss, if one was given.
        jobs: As in `compare`.
        on: As in `compare`.
        allow_modules: The packages from which code that the folder's files name
            (`"package.module:function"`) may be loaded.
        checkpoint_every: As in `compare`.
        progress: As in `compare`.
        observer: As in `compare`.
        interrupted: As in `compare`.

    Returns:
        The whole table, as if it had not been interrupted.

    Raises:
        ConfigError: There is no comparison in the folder, or something has to be given again.
        Interrupted: `interrupted` returned True.
        KeyboardInterrupt: Ctrl-C, as in `compare`.

    Example:
        ```python
        comparison = fedoptima.resume_comparison("runs/mine", model=model, train=train, test=test)
        ```
    """
    folder = Path(directory)
    refuse_links(folder)
    about = read_about(folder)
    recipe = about.recipe
    code, learned = allow(allow_modules), given_task(task)
    dataset = given_data(train, test, recipe.data.options, lambda: learned.of(recipe, loss, code))
    _, functions = given_training(training)
    made = given_methods(methods)
    given = Given(model, dataset, loss, code, made, learned.given, functions)
    given.check(recipe, folder)
    execution = Execution(jobs, on, checkpoint_every)
    with watched(execution, recipe, given, folder, progress, observer, interrupted) as execution:
        return run_missing(about, folder, execution, execution.pool(recipe, given, folder))
