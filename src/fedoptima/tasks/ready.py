"""The tasks that come with the package, and tasks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from fedoptima.core.errors import ConfigError
from fedoptima.named_code import ANY_CODE, AllowedCode, installed
from fedoptima.tasks.task import Loss, Metric, Reader, Task

IGNORED = -100  # as torch's cross_entropy has it

TORCHS_OWN = (cross_entropy, binary_cross_entropy_with_logits, mse_loss)  # losses

Metrics = Mapping[str, Metric]


def classification(
    *,
    loss: Loss = cross_entropy,
    metrics: Metrics | None = None,
    read: Reader | None = None,
    size: int | None = None,
) -> Task:
    """One of several classes for each sample: outputs (batch, classes), labels (batch,)."""
    return Task(
        loss,
        metrics or {},
        size=size,
        read=read,
        labels="classes",
        means={"accuracy": _right},
        name="classification",
    )


def multi_label(
    *,
    loss: Loss = binary_cross_entropy_with_logits,
    metrics: Metrics | None = None,
    read: Reader | None = None,
) -> Task:
    """Several classes at once: outputs (batch, classes), labels (batch, classes) of 0 or 1.

    Accuracy is the share of labels that are right, where outputs above 0 stand for yes.
    """
    return Task(
        loss,
        metrics or {},
        read=read,
        labels="shares",
        means={"accuracy": _right_marks},
        name="multi-label",
    )


def regression(
    *,
    loss: Loss = mse_loss,
    metrics: Metrics | None = None,
    read: Reader | None = None,
) -> Task:
    """Numbers: outputs (batch, numbers), labels (batch, numbers) or (batch,).

    Its figures are the mean absolute error ("mae") and the loss; there is no accuracy.
    """
    return Task(
        _AsLabels(loss),
        metrics or {},
        read=read,
        labels="numbers",
        means={"mae": _distance},
        name="regression",
    )


def token_level(
    *,
    loss: Loss | None = None,
    metrics: Metrics | None = None,
    read: Reader | None = None,
    size: int | None = None,
    ignore_index: int = IGNORED,
) -> Task:
    """A class for each position: outputs (batch, length, classes), labels (batch, length).

    Labels equal to ``ignore_index`` do not count: padding. Metrics get the predicted classes.
    """
    return Task(
        _OfPlaces(loss or cross_entropy, ignore_index, last=True),
        metrics or {},
        "position",
        size,
        read,
        predict=_last_argmax,
        labels="classes",
        ignore_index=ignore_index,
        means={"accuracy": _right_positions},
        name="token-level",
    )


def dense(
    *,
    loss: Loss | None = None,
    metrics: Metrics | None = None,
    read: Reader | None = None,
    size: int | None = None,
    ignore_index: int = IGNORED,
) -> Task:
    """A class for each pixel: outputs (batch, classes, height, width), labels (batch, height,
    width).

    Labels equal to ``ignore_index`` do not count. Metrics get the predicted classes.
    """
    return Task(
        _OfPlaces(loss or cross_entropy, ignore_index, last=False),
        metrics or {},
        "pixel",
        size,
        read,
        predict=_first_argmax,
        labels="classes",
        ignore_index=ignore_index,
        means={"accuracy": _right},
        name="dense",
    )


READY: Mapping[str, Callable[..., Task]] = {
    "classification": classification,
    "multi-label": multi_label,
    "regression": regression,
    "token-level": token_level,
    "dense": dense,
}

# ---- losses and figures of a batch ---------------------------------------------------------------


class _AsLabels(nn.Module):
    """A loss of outputs (batch, 1) and labels (batch,), which torch would spread over a square."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self._loss = loss

    def around(self, loss: Loss) -> Loss:
        """The same for another loss."""
        return _AsLabels(loss)

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self._loss(_like(outputs, labels), labels)


class _OfPlaces(nn.Module):
    """A loss over classes at every place."""

    def __init__(self, loss: Loss, ignored: int, *, last: bool) -> None:
        super().__init__()
        self._loss = loss
        self._ignored = ignored
        self._last = last

    def around(self, loss: Loss) -> Loss:
        """The same for another loss."""
        return _OfPlaces(loss, self._ignored, last=self._last)

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self._loss is not cross_entropy:  # the user's own takes them as they are
            return self._loss(outputs, labels)
        # One place a row: the loss of pictures has no deterministic kernel on CUDA.
        rows = (outputs if self._last else outputs.movedim(1, -1)).flatten(0, -2)
        said = labels.flatten()
        total = cross_entropy(rows, said, ignore_index=self._ignored, reduction="sum")
        # A batch may hold padding only: its loss is 0, not 0 / 0.
        return total / (labels != self._ignored).sum().clamp_min(1)


def is_ours(loss: Loss) -> bool:
    """Torch's own, also within what a ready task puts around it: it keeps nothing between calls,
    and asks a GPU for no value."""
    if isinstance(loss, _AsLabels | _OfPlaces):
        return is_ours(loss._loss)
    if isinstance(loss, partial):
        return is_ours(loss.func)
    made_by = type(loss) if isinstance(loss, nn.Module) else loss
    return getattr(made_by, "__module__", "") in ("torch.nn.functional", "torch.nn.modules.loss")


def _like(outputs: Tensor, labels: Tensor) -> Tensor:
    same = outputs.numel() == labels.numel() and outputs.shape != labels.shape
    return outputs.reshape(labels.shape) if same else outputs


def _right(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == labels).sum()


def _right_positions(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(dim=-1) == labels).sum()


def _right_marks(outputs: Tensor, labels: Tensor) -> Tensor:
    return ((outputs > 0) == (labels > 0.5)).sum()


def _distance(outputs: Tensor, labels: Tensor) -> Tensor:
    return (_like(outputs, labels) - labels).abs().sum()


def _last_argmax(outputs: Tensor) -> Tensor:
    return outputs.argmax(dim=-1)


def _first_argmax(outputs: Tensor) -> Tensor:
    return outputs.argmax(dim=1)


CLASSIFICATION = classification()


# ---- by name -------------------------------------------------------------------------------------


def build_task(
    name: str, options: Mapping[str, object] | None = None, code: AllowedCode = ANY_CODE
) -> Task:
    """A ready task, or what "package.module:function" returns; options that are code may be named
    in the same way."""
    loaded = {key: _loaded(key, value, code) for key, value in (options or {}).items()}
    if ":" in name:
        build: Callable[..., object] = code.load(name, "task.name")
    elif name in READY:
        build = READY[name]
    elif (offered := installed("tasks", name)) is not None:
        build = offered
    else:
        near = get_close_matches(name.replace("_", "-"), READY, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"task = {name!r}: unknown; {hint}there are {', '.join(READY)}, or give "
            "'package.module:function' for your own"
        )
    try:
        inspect.signature(build).bind(**loaded)
    except TypeError as error:
        known = ", ".join(inspect.signature(build).parameters) or "none"
        raise ConfigError(f"task = {name!r}: {error}; its options are {known}") from error
    task = build(**loaded)
    if not isinstance(task, Task):
        raise ConfigError(
            f"task = {name!r}: returned {type(task).__name__}; it must return a fedoptima.Task"
        )
    return task if name in READY else replace(task, name=name)


def _loaded(key: str, value: object, code: AllowedCode) -> object:
    if key == "metrics" and isinstance(value, Mapping):
        return {name: _loaded(f"metrics.{name}", metric, code) for name, metric in value.items()}
    if isinstance(value, str) and ":" in value:
        return code.load(value, f"task.{key}")
    return value
