"""Does the model fit the task? Found on a small batch, before anything is trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.tasks.output import Output
from fedoptima.tasks.task import Loss, Task

_SMALL = 1e-6  # a loss of which nothing can be said
_EACH = {
    "sample": "(batch, {size})",
    "position": "(batch, length, {size})",
    "pixel": "(batch, {size}, height, width)",
}


def check_output(output: object, wanted: Output, samples: int, task: Task) -> None:
    if isinstance(output, Tensor):
        shape = tuple(output.shape)
        flat = wanted.size == 1 and task.labels != "classes" and shape == (samples, *wanted.places)
        if shape == (samples, *wanted.shape) or flat:
            return
        got = str(shape)
        hint = (
            _about_classes(shape[1], wanted.size, task) if shape == (samples, *shape[1:2]) else ""
        )
    else:
        got = type(output).__name__
        hint = ", and nothing beside it"
    what = f"{wanted.size} classes" if task.labels in ("classes", "shares") else "such labels"
    raise ConfigError(
        f"the model returns {got} for {samples} samples, but the data has {what}: it must return "
        f"{wanted.in_words(samples)}, which is {_EACH[task.predicts].format(size=wanted.size)}"
        f"{hint}"
    )


def _about_classes(outputs: int, classes: int, task: Task) -> str:
    """Labels are counted up to the highest of them, which may be wrong, or not the last class."""
    if task.labels != "classes":
        return ""
    if (outputs, classes) == (1, 2):
        return (
            "; a model with one output for yes or no takes task='multi-label' and labels of shape "
            "(samples, 1): labels.unsqueeze(1)"
        )
    if outputs == classes - 1:
        return "; if your labels begin at 1, subtract 1 from them"
    if outputs > classes:
        own = f"task={{'name': {task.name!r}, 'size': {outputs}}}"
        return f"; if the labels do not show all classes, say how many there are: {own}"
    numbers = "; if labels are amounts, choose task='regression'" if outputs == 1 else ""
    wrong = f"; if there are not so many, look for wrong labels from {outputs} to {classes - 1}"
    return numbers or wrong


def check_loss_of(loss: Loss, output: Tensor, labels: Tensor) -> None:
    """Raise ConfigError unless it returns the mean over the batch, with a gradient."""
    leaf = output.detach().clone().requires_grad_()
    given = f"outputs {tuple(output.shape)} {output.dtype} and labels {tuple(labels.shape)} "
    given += f"{labels.dtype}"
    try:
        with torch.enable_grad():
            value: object = loss(leaf, labels)
    except Exception as error:  # any error in a user's loss concerns the user's loss
        raise ConfigError(
            f"the loss fails on {given}: {type(error).__name__}: {error}; choose the task that "
            "fits these labels (task=...), or another loss"
        ) from error
    if not isinstance(value, Tensor):
        raise ConfigError(
            f"the loss returns {type(value).__name__}; it must return a tensor with one number, "
            "the mean over the batch"
        )
    if value.numel() != 1 or value.dim() > 1:
        raise ConfigError(
            f"the loss returns a tensor of shape {tuple(value.shape)} for {len(labels)} samples, "
            "one loss for each; it must return their mean: use reduction='mean', or loss.mean()"
        )
    if not value.requires_grad:
        raise ConfigError(
            "the loss has no gradient: it must be computed from the outputs by differentiable "
            "operations, without detach(), item() or argmax"
        )
    if _adds_up(loss, leaf.detach(), labels):
        raise ConfigError(
            "the loss is the sum over the batch: of a sample that comes twice it is twice as much; "
            "it must return the mean, so that the batch size does not change the steps: use "
            "reduction='mean', or divide by len(labels)"
        )


def _adds_up(loss: Loss, output: Tensor, labels: Tensor) -> bool:
    try:
        once, twice = (
            float(
                loss(output[:1].repeat_interleave(times, 0), labels[:1].repeat_interleave(times, 0))
            )
            for times in (1, 2)
        )
    except Exception:  # one that cannot do with a single sample is no plain sum
        return False
    return abs(once) > _SMALL and math.isclose(twice, 2 * once, rel_tol=1e-4)
