"""When a run is over: whichever of the given rules is met first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedoptima.core.errors import ConfigError

ACCURACY, LOSS = "accuracy", "loss"
# Metrics of which less is better, unless a rule says otherwise.
FALLING = frozenset({LOSS, "mae", "mse", "rmse", "error", "perplexity"})
DEVICES_MEAN, DEVICES_WORST = "devices_mean_", "devices_worst_"  # before the name of a metric
OF_DEVICE = "@"  # in the name of a metric, before the device on whose own data it was measured


def _key(description: str, example: float | str) -> Any:
    """Of a recipe, with what its reference says about it."""
    return field(default=None, metadata={"description": description, "examples": [example]})


@dataclass(frozen=True, slots=True)
class StopRule:
    """A recipe's ``[stop]``. Rules that are not given never stop a run; at least one has to be."""

    rounds: int | None = _key("Global rounds.", 100)
    epochs: float | None = _key("Passes over all devices' data.", 10.0)
    hours: float | None = _key("Hours of training: virtual in simulation, real in deployment.", 2.0)
    target_accuracy: float | None = _key("Validation accuracy to reach: 0.8 is 80 %.", 0.8)
    patience: float | None = _key("Epochs without a better value of the metric.", 10.0)
    metric: str | None = _key(
        "The metric that target and patience watch; unset: accuracy, or the loss if the task has "
        "no accuracy.",
        "f1",
    )
    target: float | None = _key("A value of the metric to reach.", 0.7)
    direction: Literal["max", "min"] | None = _key(
        "Is a higher or a lower metric better? Unset: lower for the loss and errors (mae, mse, "
        "rmse, error, perplexity), higher for all others.",
        "max",
    )

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in BUDGETS}
        if all(value is None for value in (*given.values(), self.target)):
            raise ConfigError(
                "nothing stops this run: give rounds, epochs, hours, target_accuracy, target or "
                "patience"
            )
        if self.target is not None and not math.isfinite(self.target):
            raise ConfigError(f"stop.target = {self.target:g}: must be finite")
        if self.target is not None and self.target_accuracy is not None:
            raise ConfigError("stop: give either target_accuracy or target with metric, not both")
        if self.direction not in (None, "max", "min"):
            raise ConfigError(f"stop.direction = {self.direction!r}: must be 'max' or 'min'")
        for name, value in given.items():
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"stop.{name} = {value:g}: must be greater than 0 and finite")
        if self.target_accuracy is not None and self.target_accuracy > 1:
            raise ConfigError(
                f"stop.target_accuracy = {self.target_accuracy:g}: must be at most 1 (0.8 is 80 %)"
            )
        accuracy = self.metric is not None and _without_devices(self.metric) == ACCURACY
        if accuracy and self.target is not None and self.target > 1:
            raise ConfigError(
                f"stop.target = {self.target:g}: an accuracy is at most 1 (0.8 is 80 %)"
            )

    @property
    def seconds(self) -> float | None:
        """Of training: the unit of every clock."""
        return None if self.hours is None else self.hours * 3600

    @property
    def only_accuracy(self) -> bool:
        """A run without tensors has no accuracy, so these rules alone would never stop it."""
        return self.rounds is None and self.epochs is None and self.hours is None

    def watched(self, metrics: Mapping[str, float]) -> str | None:
        """Which of these metrics target and patience go by."""
        wanted = (self.metric,) if self.metric is not None else (ACCURACY, LOSS)
        return next((name for name in wanted if name in metrics), None)

    def falls(self, name: str) -> bool:
        """Is less of this metric better? ``direction`` is that of the metric that is watched."""
        own = _without_devices(name)
        watched = self.metric is None or own == _without_devices(self.metric)
        if self.direction is None or not watched:
            return own in FALLING
        return self.direction == "min"

    def progress(self, *, rounds: int, epochs: float, seconds: float) -> float:
        """The share of the budget that is spent; learning-rate schedules follow it."""
        spent = 0.0
        if self.rounds is not None:
            spent = max(spent, rounds / self.rounds)
        if self.epochs is not None:
            spent = max(spent, epochs / self.epochs)
        if (limit := self.seconds) is not None:
            spent = max(spent, seconds / limit)
        return min(spent, 1.0)


def _without_devices(name: str) -> str:
    """The metric itself, without whose figures are meant."""
    own = name.partition(OF_DEVICE)[0]
    return own.removeprefix(DEVICES_MEAN).removeprefix(DEVICES_WORST)


BUDGETS = ("rounds", "epochs", "hours", "target_accuracy", "patience")


class Stopper:
    """Applies a `StopRule`; remembers the metric's best value and when it was reached."""

    def __init__(self, rule: StopRule) -> None:
        self.rule = rule
        self.best: float | None = None
        self.best_epoch = 0.0

    def spent(self, *, rounds: int, epochs: float, within: float = 0.0) -> str | None:
        """The reason to stop, if a budget is spent. (Seconds are a timer of the server.)

        Less than ``within`` epochs before the end of its budget a run stops as well.
        """
        rule = self.rule
        if rule.rounds is not None and rounds >= rule.rounds:
            return f"{rounds} round{'s' * (rounds != 1)} done"
        # Epochs are sums of shares, so neither comparison is exact.
        if rule.epochs is not None and rule.epochs - epochs < max(within - 1e-9, 1e-9):
            return f"{rule.epochs:g} epoch{'s' * (rule.epochs != 1)} done"
        return None

    def evaluated(self, metrics: dict[str, float], *, epochs: float) -> str | None:
        """The reason to stop, if these metrics give one."""
        rule = self.rule
        accuracy, name = metrics.get(ACCURACY, -math.inf), rule.watched(metrics)
        if rule.target_accuracy is not None and accuracy >= rule.target_accuracy:
            return f"accuracy {accuracy:.4f} reached the target {rule.target_accuracy:g}"
        if name is None:
            return None
        value, falls = metrics[name], rule.falls(name)
        if self.best is None or (value < self.best if falls else value > self.best):
            self.best, self.best_epoch = value, epochs
        if rule.target is not None and (value <= rule.target if falls else value >= rule.target):
            return f"{name} {value:.4f} reached the target {rule.target:g}"
        if rule.patience is not None and epochs - self.best_epoch >= rule.patience:
            return (
                f"converged: {name} has not improved on {self.best:.4f} "
                f"for {rule.patience:g} epochs"
            )
        return None
