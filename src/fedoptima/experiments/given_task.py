"""The task as a caller gives it: a `Task`, a name, a table with options, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedoptima.config.schema import Recipe, TaskConfig
from fedoptima.core.errors import ConfigError
from fedoptima.core.stopping import ACCURACY, LOSS
from fedoptima.named_code import ANY_CODE, AllowedCode

if TYPE_CHECKING:  # it takes torch, and a dry run may do without
    from fedoptima.tasks.task import Loss, Task


@dataclass(frozen=True)
class GivenTask:
    table: Mapping[str, object] | None  # of the recipe; None: as the recipe has it
    given: Task | None  # what no recipe can hold

    def of(self, recipe: Recipe | None, loss: Loss | None, code: AllowedCode = ANY_CODE) -> Task:
        """What is learned, for data that are read now."""
        config = TaskConfig() if recipe is None else recipe.task
        if self.table is not None and self.given is None:
            config = TaskConfig.model_validate(self.table)
        return task_of(config, self.given, loss, code)


def given_task(task: object) -> GivenTask:
    if task is None:
        return GivenTask(None, None)
    if isinstance(task, str):
        return GivenTask({"name": task}, None)
    if isinstance(task, Mapping) and _is_plain(task):
        return GivenTask({"name": "classification", **task}, None)
    from fedoptima.tasks.ready import READY, build_task
    from fedoptima.tasks.task import Task

    if isinstance(task, Task):
        return GivenTask({"name": "custom"}, task)
    if isinstance(task, Mapping):
        options = {key: value for key, value in task.items() if key != "name"}
        made = build_task(str(task.get("name", "classification")), options)
        return GivenTask({"name": "custom"}, made)
    called = isinstance(task, type) and issubclass(task, Task)
    what = "the class Task; give an instance of it" if called else f"a {type(task).__name__}"
    raise ConfigError(
        f"task is {what}: give a name ({', '.join(READY)}), a table with its options, or a "
        "fedoptima.Task(loss=...)"
    )


def _is_plain(value: object) -> bool:
    """Can a recipe hold it?"""
    if isinstance(value, Mapping):
        return all(_is_plain(item) for item in value.values())
    return isinstance(value, str | int | float | bool)


def task_of(config: TaskConfig, given: Task | None, loss: Loss | None, code: AllowedCode) -> Task:
    """``loss``: in place of the task's own."""
    from fedoptima.tasks.ready import build_task
    from fedoptima.tasks.task import check_loss

    if loss is not None:
        check_loss(loss)
    task = build_task(config.name, config.options, code) if given is None else given
    if loss is None:
        return task
    around = getattr(task.loss, "around", None)  # a ready task brings outputs and labels together
    return replace(task, loss=loss if around is None else around(loss))


def check_figures(recipe: Recipe, task: Task) -> None:
    """A run that waits for a figure that its task does not have would never end."""
    stop, figures = recipe.stop, [*task.means, LOSS, *task.metrics]
    if recipe.data.device_validation is not None:
        figures += [f"devices_{which}_{name}" for which in ("mean", "worst") for name in figures]
    known = f"the figures of this task ({task.name}) are {', '.join(figures)}"
    if stop.metric is not None and stop.metric not in figures:
        raise ConfigError(f"stop.metric = {stop.metric!r}: unknown; {known}")
    if stop.target_accuracy is not None and ACCURACY not in figures:
        raise ConfigError(
            f"stop.target_accuracy = {stop.target_accuracy:g}: {known}; use stop.metric and "
            "stop.target"
        )
