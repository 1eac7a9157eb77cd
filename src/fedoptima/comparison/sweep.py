"""A recipe with settings varied, x methods x seeds: the public function `sweep`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from torch import nn

from fedoptima.comparison.many_runs import RESUME, Execution, On, run_new, watched
from fedoptima.comparison.pool import PoolObserver
from fedoptima.comparison.result import Comparison
from fedoptima.comparison.spec import Methods, describe
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Dataset
from fedoptima.display.wording import speaks_python
from fedoptima.experiments.given import given_methods
from fedoptima.experiments.parts import Options, recipe_from
from fedoptima.methods.registry import Builder
from fedoptima.tasks.task import Loss, Task


@speaks_python(RESUME)
def sweep(
    recipe: Recipe | str | Path | None = None,
    vary: Mapping[str, Sequence[object]] | None = None,
    *,
    methods: Methods | None = None,
    seeds: int | Sequence[int] | None = None,
    options: Mapping[str, object] | None = None,
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
    """Run a recipe with all combinations of varied settings, methods and seeds; one table.

    Args:
        recipe: A recipe file, or a `Recipe`.
        vary: Values by key of the recipe (`{"fleet.scale": [1, 0.3]}`), by option of whichever
            methods have it (`"method.activation_cap"`), or of one method alone
            (`"pipar.micro_batches"`). A method that the varied keys do not apply to runs once.
        methods: As in `compare`; by default the recipe's own.
        seeds: As in `compare`.
        options: As in `compare`.
        model: As in `compare`.
        train: As in `simulate`.
        test: As in `simulate`.
        data: As in `simulate`.
        fleet: As in `simulate`.
        method: As in `simulate`.
        training: As in `simulate`.
        split: As in `simulate`.
        stop: As in `simulate`.
        epochs: As in `simulate`.
        device: As in `simulate`.
        threads: As in `simulate`.
        workers: As in `compare`.
        task: As in `simulate`.
        loss: As in `simulate`.
        jobs: As in `compare`.
        on: As in `compare`.
        target: Report the time to this accuracy; none by default.
        dry: Simulate the timing only; nothing is trained.
        out: A new or empty folder, or that of an earlier sweep of the same recipe: its finished
            runs are kept, so a sweep can be extended by further values. Objects given in Python
            have to be the same; that is not checked.
        checkpoint_every: As in `compare`.
        command: As in `compare`.
        progress: As in `compare`.
        observer: As in `compare`.
        interrupted: As in `compare`.

    Returns:
        One row per method and choice of settings.

    Raises:
        ConfigError: An argument cannot work; the message says which, and how to fix it.
        Interrupted: `interrupted` returned True.
        KeyboardInterrupt: Ctrl-C; with `out`, the message says how to resume.

    Example:
        ```python
        table = fedoptima.sweep("recipes/demo_digits.toml", {"method.activation_cap": [4, 8, 32]})
        table.to_pandas()
        ```
    """
    base, given = recipe_from(
        recipe,
        "sweep()",
        several=True,
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
        device=device,
        threads=threads,
        workers=workers,
        task=task,
        loss=loss,
    )
    if not vary:
        raise ConfigError("nothing is varied; for example: --vary method.activation_cap=4,8,32")
    _check_values(vary)
    given = replace(given, methods={**given.methods, **given_methods(methods)})
    about = describe(
        base,
        given,
        methods=methods or (base.method.name,),
        seeds=seeds,
        options=options or {},
        dry=dry,
        target=target,
        command=command,
        vary=vary,
    )
    execution = Execution(jobs, on, checkpoint_every)
    with watched(execution, base, given, out, progress, observer, interrupted) as execution:
        return run_new(about, given, execution, out)


def _check_values(vary: Mapping[str, Sequence[object]]) -> None:
    """They name rows and folders, and are stored."""
    for key, values in vary.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise ConfigError(
                f"vary: {key}: {values!r:.60} is not a list of values (numpy: .tolist())"
            )
        for value in values:
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                raise ConfigError(
                    f"vary: {key}: {type(value).__name__} is not a value that a recipe can "
                    "hold (numpy: .item()); give numbers, text, lists or dicts, code by its name "
                    "('package.module:function'), or call simulate() for each"
                ) from None
