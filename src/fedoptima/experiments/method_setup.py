"""From a recipe to the method it names, and to the settings of server and plan."""

from __future__ import annotations

import json
from dataclasses import replace
from difflib import get_close_matches
from inspect import isclass
from typing import get_type_hints

from pydantic import ConfigDict, ValidationError, validate_call
from pydantic_core import ErrorDetails

from fedoptima.config.load import keys_in, nearest
from fedoptima.config.schema import Recipe
from fedoptima.core.aggregation import AsyncStaleness
from fedoptima.core.errors import ConfigError
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.settings import ServerSettings
from fedoptima.experiments.given import CUSTOM_AUXILIARY, Given
from fedoptima.methods.policies import make_policies
from fedoptima.methods.registry import Builder, find_method, options_of
from fedoptima.methods.stored_classes import make_storable
from fedoptima.named_code import Code
from fedoptima.preprocess.plan import PlanSettings
from fedoptima.sim.fleet import build_fleet, charges_memory
from fedoptima.tasks.output import Output


def build_method(recipe: Recipe, devices: int, given: Given | None = None) -> Method:
    """The method with its options checked against what it takes, and all of them in `resolved`."""
    given = given or Given()
    name, options = recipe.method.name, recipe.method.options
    build = find_method(name, given.code, given.methods)
    if isclass(build):
        raise ConfigError(
            f"method.name = {name!r}: is a class; give a function that returns a "
            "fedoptima.methods.Method"
        )
    known = options_of(build)
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"method.{option}: {name} has no such option; {hint}"
                f"it has {', '.join(known) or 'none'}"
            )
    try:
        method: object = validate_call(config=ConfigDict(strict=True))(build)(devices, **options)
        if not isinstance(method, Method):
            raise ConfigError(
                f"method.name = {name!r}: must return a fedoptima.methods.Method, and returned a "
                f"{type(method).__name__}"
            )
        # They check their settings, which should happen before a run is set up.
        make_storable(build, make_policies(method))
    except ValidationError as error:
        raise ConfigError(_mistake(error.errors()[0], build)) from error
    except ConfigError as error:
        if str(error).startswith("method."):
            raise
        chosen = [f"method.{option} = {value!r}" for option, value in options.items()]
        where = ", ".join(chosen) or f"method.name = {name!r}"
        raise ConfigError(f"{where}: {error}") from error
    parts, batch = method.program.micro_batches, recipe.training.batch_size
    if parts > batch:
        raise ConfigError(
            f"method.micro_batches = {parts}: a mini-batch has training.batch_size = {batch} "
            f"samples and cannot be cut into more parts; give at most {batch}"
        )
    every = {**known, **options, **method.resolved}  # of another one, perhaps, that it is made from
    own = {key: value for key, value in every.items() if key in known and _plain(value)}
    return replace(method, resolved=json.loads(json.dumps(own)))  # as it is when read back


def _mistake(first: ErrorDetails, build: Builder) -> str:
    key = ".".join(str(part) for part in first["loc"])
    known = _keys_of(build, str(first["loc"][0])) if first["loc"] else []
    match first["type"]:
        case "missing_keyword_only_argument" | "missing_argument":
            return (
                f"method.{key}: is missing; set it, or give it a default in the method's function"
            )
        case "extra_forbidden":
            return f"method.{key}: unknown key{nearest(str(first['loc'][-1]), known)}"
        case "model_type" if known:
            return f"method.{key} = {first['input']!r}: must be a table, of {', '.join(known)}"
    return f"method.{key} = {first['input']!r}: {first['msg'].lower()}"


def _keys_of(build: Builder, option: str) -> list[str]:
    """Of an option that is a table."""
    try:
        return keys_in(get_type_hints(build).get(option))
    except (NameError, TypeError):  # of a function of the user's own that is not a plain one
        return []


def _plain(value: object) -> bool:
    """Can a run's description hold it? If not, it is a default, and will be again."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


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
        seed=recipe.seed,
    )


def plan_settings(recipe: Recipe, method: Method, output: Output, given: Given) -> PlanSettings:
    if recipe.split.per_device:
        _check_cuts(recipe.method.name, method)
    return PlanSettings(
        training=method.training,
        batch_size=recipe.training.batch_size,
        classes=output.size,
        places=output.places,
        seed=recipe.seed,
        auxiliary=method.auxiliary,
        auxiliary_code=_auxiliary_code(method.auxiliary, given),
        split=recipe.split.at if isinstance(recipe.split.at, int) else None,
        after=recipe.split.at if isinstance(recipe.split.at, str) else None,
        objective=recipe.split.objective,
        traffic=charges_memory(recipe.fleet),
        train_every=method.program.train_every,
        micro_batches=method.program.micro_batches,
        own_split=method.own_split,
        server_flops_per_second=_server_speed(recipe, method),
        codecs=method.codecs,
        per_device=recipe.split.per_device,
        batch_seconds=recipe.split.batch_seconds or 0.0,
    )


def _check_cuts(name: str, method: Method) -> None:
    """Can devices of this method have cuts of their own?"""
    key = "split.per_device = true"
    shared = method.training is ServerTraining.SHARED and method.program.kind == "auxiliary"
    if not shared or type(method.aggregation()) is not AsyncStaleness:
        raise ConfigError(
            f"{key}: {name} cannot give devices cuts of their own: it takes one server side for "
            "all, devices with a loss of their own, and updates that are merged one by one; leave "
            'it out, or use method.name = "fedoptima" with an auxiliary network'
        )
    if method.robust != "none":
        raise ConfigError(
            f"{key}: method.robust = {method.robust!r} compares the updates of all devices, and "
            "those of different cuts are not alike; leave either out"
        )


def _server_speed(recipe: Recipe, method: Method) -> float | None:
    """As the recipe's fleet says, over the network too, so that a replay makes the same plan."""
    asked = method.own_split or not method.program.micro_batches
    if not asked or recipe.fleet is None:
        return None
    return build_fleet(recipe.fleet, recipe.seed).server.flops_per_second


def _auxiliary_code(auxiliary: str | int, given: Given) -> Code | None:
    """The user's function that builds the auxiliary network, if it is not one of ours."""
    if not isinstance(auxiliary, str):
        return None
    if auxiliary in given.methods:
        return given.methods[auxiliary]
    if auxiliary == CUSTOM_AUXILIARY:
        raise ConfigError(
            "this run's auxiliary network was given in Python; give it again "
            "(method={'auxiliary': ...})"
        )
    return given.code.load(auxiliary, "method.auxiliary") if ":" in auxiliary else None
