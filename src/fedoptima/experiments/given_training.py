"""Optimisers and schedules of the user's own: functions in a training table, and named ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from fedoptima.config.training import GIVEN, OptimizerConfig, ScheduleConfig, TrainingConfig
from fedoptima.core.errors import ConfigError
from fedoptima.named_code import AllowedCode, import_name

if TYPE_CHECKING:  # it takes torch, and a dry run may do without
    from fedoptima.engine.optimizer import LearnerCode

Functions = Mapping[str, Callable[..., Any]]
Side = Literal["device", "server"]

# Where a training table may hold a function, as the keys of the tables on the way.
_PLACES = (
    ("device", "name"),
    ("server", "name"),
    ("schedule", "kind"),
    ("device", "schedule", "kind"),
    ("server", "schedule", "kind"),
)
_KNOWN = ("sgd", "adam", "adamw")


def given_training(
    training: Mapping[str, object] | None,
) -> tuple[Mapping[str, object] | None, dict[str, Callable[..., Any]]]:
    """A training table without functions, and the functions by their keys in a recipe.

    A schedule that is a function may stand for its table: ``schedule=lambda share: 1 - share``.
    """
    if training is None:
        return None, {}
    table: dict[str, Any] = _copied(training)
    for side in (table, table.get("device"), table.get("server")):
        if isinstance(side, dict) and callable(side.get("schedule")):
            side["schedule"] = {"kind": side["schedule"]}
    for name in ("device", "server"):
        if callable(table.get(name)):
            raise ConfigError(
                f"training: {name} is a table, and an optimiser its 'name': "
                f"{{'name': {_name(table[name])}, 'learning_rate': 0.001}}"
            )
    found: dict[str, Callable[..., Any]] = {}
    for *path, last in _PLACES:
        place: Any = table
        for part in path:
            place = place.get(part) if isinstance(place, dict) else None
        if isinstance(place, dict) and last in place and not isinstance(place[last], str):
            key = ".".join(("training", *path, last))
            found[key] = _function(place[last], key)
            place[last] = _name(place[last])
    return table, found


def _copied(table: Mapping[str, object]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in table.items()}


def _function(value: object, key: str) -> Callable[..., Any]:
    if callable(value):
        return value
    if hasattr(value, "param_groups"):
        raise ConfigError(
            f"{key}: is an optimiser that is made already, for one model; give its class, "
            f"{type(value).__name__}, or a function that makes one of the parameters and lr"
        )
    raise ConfigError(f"{key} = {value!r:.60}: is a {type(value).__name__}, not a function")


def _name(function: Callable[..., Any]) -> str:
    import torch

    name = getattr(function, "__name__", "")
    if getattr(torch.optim, name, None) is function:
        return str(name)
    return import_name(function) or GIVEN


def learner_code(
    training: TrainingConfig, side: Side, given: Functions, code: AllowedCode
) -> LearnerCode:
    """What one side learns with: the user's own optimiser and schedule, where there are any."""
    from fedoptima.engine.optimizer import LearnerCode

    settings: OptimizerConfig = getattr(training, side)
    key = f"training.{side}"
    if settings.schedule is not None:
        factor = _schedule(settings.schedule, f"{key}.schedule.kind", given, code)
    else:
        factor = _schedule(training.schedule, "training.schedule.kind", given, code)
    return LearnerCode(_optimizer(settings, f"{key}.name", given, code), factor)


def _optimizer(
    settings: OptimizerConfig, key: str, given: Functions, code: AllowedCode
) -> Callable[..., Any] | None:
    from fedoptima.engine.optimizer import known_to_torch

    if key in given:
        return given[key]
    if settings.name in _KNOWN:
        return None
    if ":" in settings.name:
        return code.load(settings.name, key)
    if settings.name == GIVEN:
        raise ConfigError(f"{key}: was given in Python; give it again (training=...)")
    found = known_to_torch(settings.name)
    if found is None:
        raise ConfigError(
            f"{key} = {settings.name!r}: unknown; there are {', '.join(_KNOWN)}, the classes of "
            "torch.optim such as 'RMSprop', or give 'package.module:function' for your own"
        )
    return found


def _schedule(
    schedule: ScheduleConfig, key: str, given: Functions, code: AllowedCode
) -> Callable[[float], float] | None:
    from fedoptima.engine.optimizer import own_factor

    if key in given:
        factor = given[key]
    elif schedule.kind == GIVEN:
        raise ConfigError(f"{key}: was given in Python; give it again (training=...)")
    elif ":" in schedule.kind:
        factor = code.load(schedule.kind, key)
    else:
        return None
    for share in (0.0, 0.5, 1.0):  # found before anything is trained
        own_factor(factor, share, key)
    return factor
