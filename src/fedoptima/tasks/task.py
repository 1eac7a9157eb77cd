"""`Task`: what a model learns. The ready ones are in `tasks.ready`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.tasks.labels import LabelKind, LabelRule, converted, kind_of
from fedoptima.tasks.output import Output, Predicts

Loss = Callable[[Tensor, Tensor], Tensor]
Metric = Callable[[Tensor, Tensor], float]
Reader = Callable[[Any], tuple[Any, Any]]

_DIMENSIONS = {"sample": 1, "position": 2, "pixel": 3}  # of class labels, samples first
_READY_FOR = {  # what is often asked for as a loss, by a part of its name
    "mse": "regression",
    "l1": "regression",
    "huber": "regression",
    "bce": "multi-label",
    "binary": "multi-label",
    "cross": "classification",
    "nll": "classification",
}


@dataclass(frozen=True, eq=False)
class Task:
    """What a model learns: loss, labels, metrics, and what it predicts.

    ``loss(outputs, labels)`` returns the mean over the batch, a tensor with one number. ``metrics``
    are functions ``(predictions, labels)`` over the whole validation data that return a number.
    The predictions are the model's outputs, or what ``predict`` makes of the outputs of each batch.

    ``predicts`` says what the model, and with it the auxiliary network, predicts: one output for
    each ``"sample"`` (batch, size), for each ``"position"`` of a sequence (batch, length, size), or
    for each ``"pixel"`` (batch, size, height, width). ``size``: how many numbers that is; by
    default as many as the labels have classes or numbers.

    ``read(item)`` makes ``(inputs, labels)`` of an item of a dataset, where it is not such a pair.
    """

    loss: Loss
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    predicts: Predicts = "sample"
    size: int | None = None
    read: Reader | None = None
    predict: Callable[[Tensor], Tensor] | None = None
    labels: LabelKind | None = None  # None: integers are class numbers, others are numbers
    ignore_index: int | None = None  # the class number of labels that do not count
    # Figures that are means over all labels: the sum over those of a batch. They need no memory.
    means: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=dict)
    name: str = "own"

    def __post_init__(self) -> None:
        check_loss(self.loss)
        if not isinstance(self.metrics, Mapping):
            raise ConfigError(
                f"metrics = {self.metrics!r:.60}: give them by name, for example "
                "metrics={'f1': f1}"
            )
        for name, metric in self.metrics.items():
            _check_function(metric, f"metrics[{name!r}]", "(predictions, labels) to a number")
            if name in ("loss", *self.means):
                raise ConfigError(f"metrics[{name!r}]: the task has a figure of that name already")
        for what in ("read", "predict"):
            if (function := getattr(self, what)) is not None:
                _check_function(function, what, "one argument")
        if self.predicts not in _DIMENSIONS:
            raise ConfigError(
                f"predicts = {self.predicts!r}: must be {', '.join(map(repr, _DIMENSIONS))}"
            )
        if self.size is not None and (not isinstance(self.size, int) or self.size < 1):
            raise ConfigError(f"size = {self.size!r}: must be a whole number of at least 1")

    # ---- labels ------------------------------------------------------------------------------

    def as_labels(self, labels: Tensor, what: str) -> Tensor:
        """As they are kept: int64 or float32. ``what`` begins a message."""
        return converted(labels, self.labels or kind_of(labels), what)

    def classes_in(self, labels: Tensor) -> int:
        """How many classes or numbers the model has to predict, as far as these labels tell."""
        if self.size is not None:
            return self.size
        if labels.is_floating_point():
            return labels.shape[1] if labels.dim() > 1 and self.predicts == "sample" else 1
        counted = labels if self.ignore_index is None else labels[labels != self.ignore_index]
        return int(counted.max()) + 1 if counted.numel() else 1

    def check_labels(self, labels: Tensor, classes: int, where: str) -> None:
        """Raise ConfigError if the task cannot be learned from them."""
        if labels.is_floating_point():
            self._check_numbers(labels, classes, where)
        elif labels.dtype != torch.int64 or labels.dim() != _DIMENSIONS[self.predicts]:
            given = f"{where}: labels are {tuple(labels.shape)} {labels.dtype}"
            each = {"sample": "sample", "position": "position of each sequence"}
            raise ConfigError(
                f"{given}; give one integer class number for each "
                f"{each.get(self.predicts, 'pixel')}{self._other_tasks(labels)}"
            )
        else:
            self._check_classes(labels, classes, where)

    def _other_tasks(self, labels: Tensor) -> str:
        if self.predicts == "sample" and labels.dim() == 2:
            if labels.shape[1] == 1:
                return ": labels.squeeze(1)"
            if bool((labels.sum(1) == 1).all()) and bool((labels >= 0).all()):
                return ": labels.argmax(1); or choose task = 'multi-label' or 'token-level'"
        fitting = {1: "classification", 2: "token-level", 3: "dense"}.get(labels.dim())
        if fitting in (None, self.name):
            return ""
        return f", or choose task = {fitting!r}"

    def _check_classes(self, labels: Tensor, classes: int, where: str) -> None:
        outside = (labels < 0) | (labels >= classes)
        if self.ignore_index is not None:
            outside &= labels != self.ignore_index
        if outside.any():
            rows = outside.flatten(1).any(1) if outside.dim() > 1 else outside
            ignored = f" (and {self.ignore_index})" if self.ignore_index is not None else ""
            raise ConfigError(
                f"{where}: labels run from {int(labels.min())} to {int(labels.max())}, but "
                f"{classes} classes are numbered 0 to {classes - 1}{ignored}; renumber the labels "
                f"or set classes (see {_rows(rows)})"
            )

    def _check_numbers(self, labels: Tensor, classes: int, where: str) -> None:
        flat = labels.reshape(len(labels), -1)
        bad = ~flat.isfinite().all(1)
        if bad.any():
            raise ConfigError(f"{where}: labels are NaN or infinite in {_rows(bad)}")
        if self.labels == "shares":
            if labels.dim() != 2 or labels.shape[1] != classes:
                column = ": labels.unsqueeze(1)" if labels.dim() == classes == 1 else ""
                raise ConfigError(
                    f"{where}: labels are {tuple(labels.shape)}; give a row of {classes} for each "
                    f"sample, a 0 or 1 for each class{column}"
                )
            odd = ((flat < 0) | (flat > 1)).any(1)
            if odd.any():
                raise ConfigError(f"{where}: labels are outside of 0 to 1 in {_rows(odd)}")

    def rule(self, labels: Tensor, classes: int) -> LabelRule:
        """What other labels of the same data may be."""
        shape, dtype = tuple(labels.shape[1:]), labels.dtype
        if not labels.is_floating_point():
            return LabelRule(shape, dtype, 0, classes - 1, self.ignore_index)
        if self.labels == "shares":
            return LabelRule(shape, dtype, 0, 1)
        most = 1000 * max(1.0, float(labels.abs().max()) if labels.numel() else 1.0)
        return LabelRule(shape, dtype, -most, most)

    def class_labels(self, labels: Tensor, key: str) -> Tensor:
        """One class number for each sample, for what is divided by classes."""
        if labels.is_floating_point() or labels.dim() != 1:
            raise ConfigError(
                f"{key}: needs one class for each sample, and the labels of this task "
                f"({self.name}) are {tuple(labels.shape[1:]) or 'numbers'}; divide the data "
                "independently of them: data.partition.kind = 'iid', 'quantity' or 'file'"
            )
        return labels

    # ---- outputs -----------------------------------------------------------------------------

    def output(self, labels: Tensor, classes: int) -> Output:
        """What the model has to predict for a sample with such labels."""
        places: tuple[int, ...] = ()
        if self.predicts == "position":
            places = tuple(labels.shape[1:2])
        elif self.predicts == "pixel":
            places = tuple(labels.shape[-2:])
        return Output(classes, places)

    def counted(self, labels: Tensor) -> Tensor | int:
        """How many labels of a batch count."""
        return labels.numel() if self.ignore_index is None else (labels != self.ignore_index).sum()

    def share(self, part: Tensor, whole: Tensor) -> Tensor:
        """How much the loss of a part of a mini-batch counts: a loss is a mean over labels."""
        if self.ignore_index is None:
            return torch.full((), len(part) / len(whole), device=part.device)
        counted = (part != self.ignore_index).sum() / (whole != self.ignore_index).sum().clamp_min(
            1
        )
        # Where no label counts the loss is 0, whatever its share; and a share is above 0.
        return counted.clamp_min(torch.finfo(counted.dtype).tiny)


def check_loss(loss: object) -> None:
    if isinstance(loss, str):
        ready = next((name for part, name in _READY_FOR.items() if part in loss.lower()), None)
        hint = f"for this one choose task={ready!r}, or give" if ready else "give"
        raise ConfigError(
            f"loss = {loss!r}: a loss is not a name; {hint} a function of (outputs, labels), for "
            "example torch.nn.functional.mse_loss"
        )
    _check_function(loss, "loss", "(outputs, labels) to the mean over the batch")


def _check_function(value: object, what: str, signature: str) -> None:
    if inspect.isclass(value):
        raise ConfigError(
            f"{what} = {value.__name__}: is a class; give an instance of it, {value.__name__}()"
        )
    if not callable(value):
        raise ConfigError(
            f"{what} = {value!r:.60}: is a {type(value).__name__}, not a function; give a function "
            f"of {signature}"
        )


def _rows(bad: Tensor) -> str:
    rows: list[int] = bad.nonzero().flatten().tolist()
    more = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:5]))}{more}"
