"""From a recipe to the method it names, and to the settings of server and plan."""

from __future__ import annotations

from difflib import get_close_matches

from pydantic import ConfigDict, ValidationError, validate_call

from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.method import Method
from fedoptima.core.settings import ServerSettings
from fedoptima.methods.registry import find_method, method_options
from fedoptima.preprocess.plan import PlanSettings


def build_method(recipe: Recipe, devices: int) -> Method:
    """The method with its options checked against what it takes."""
    name, options = recipe.method.name, recipe.method.options
    build = find_method(name)
    known = method_options(name)
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"method.{option}: {name} has no such option; {hint}"
                f"it has {', '.join(known) or 'none'}"
            )
    try:
        method: Method = validate_call(config=ConfigDict(strict=True))(build)(devices, **options)
        for policy in (method.flow, method.aggregation):
            policy()  # they check their settings, which should happen before a run is set up
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"method.{key} = {first['input']!r}: {first['msg'].lower()}") from error
    except ConfigError as error:
        if str(error).startswith("method."):
            raise
        given = ", ".join(f"method.{option} = {value!r}" for option, value in options.items())
        raise ConfigError(f"{given}: {error}") from error
    parts, batch = method.program.micro_batches, recipe.training.batch_size
    if parts > batch:
        raise ConfigError(
            f"method.micro_batches = {parts}: a mini-batch has training.batch_size = {batch} "
            f"samples and cannot be cut into more parts; give at most {batch}"
        )
    return method


def server_settings(
    recipe: Recipe, devices: int, *, patience: float | None = None
) -> ServerSettings:
    return ServerSettings(
        stop=recipe.stop,
        devices=devices,
        patience=patience,
        drop_diverged=recipe.training.on_divergence == "drop",
        batch_size=recipe.training.batch_size,
        iterations=recipe.training.iterations,
        evaluate_every=recipe.training.evaluate_every,
    )


def plan_settings(recipe: Recipe, method: Method, classes: int) -> PlanSettings:
    return PlanSettings(
        training=method.training,
        batch_size=recipe.training.batch_size,
        classes=classes,
        seed=recipe.seed,
        auxiliary=method.auxiliary,
        split=recipe.split.at,
        objective=recipe.split.objective,
    )
