"""Settings of many runs by their keys: whom each reaches, and whether it can be meant.

training.batch_size     a key of the recipe: reaches all runs
method.activation_cap   an option of the method: reaches the methods that have it
pipar.micro_batches     an option of one method: reaches that method alone
pipar.training.device.learning_rate
                        a key of the recipe for one method alone; of training and split
my_package:build.mu     an option of a method in a user's code
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from fedoptima.config.load import parse_value
from fedoptima.config.own_settings import TABLES
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.methods.registry import METHODS, method_options
from fedoptima.named_code import installed

# The options of methods in users' code, by the methods' names: known from when a comparison was
# begun, because nothing is imported when its files are read.
OwnOptions = Mapping[str, Sequence[str]]
METHOD = "method"
_OWN_TABLES = tuple(f"{table}." for table in TABLES)
_OWN_FLAGS = {"seed": "--seeds or --seed", "method": "--methods", "method.name": "--methods"}


def option_of(key: str) -> str | None:
    """The option of a method that the key names; None: it is a key of the recipe."""
    head, option = _parts(key)
    if head == METHOD:
        return option or None
    return option if option and is_method(head) and not option.startswith(_OWN_TABLES) else None


def recipe_key(key: str) -> str:
    """Of a key that is no option: without the method that it is meant for, if there is one."""
    return _parts(key)[1] if of_one_method(key) else key


def of_one_method(key: str) -> bool:
    """Is it meant for a method that it names?"""
    return is_method(_parts(key)[0])


def _place(key: str) -> str:
    """What it sets in the recipe of a run that it reaches."""
    option = option_of(key)
    return recipe_key(key) if option is None else f"{METHOD}.{option}"


def _parts(key: str) -> tuple[str, str]:
    """The table or method that a key begins with, and what comes after it."""
    module, colon, rest = key.rpartition(":")
    head, _, option = rest.partition(".")
    return f"{module}{colon}{head}", option


def is_method(name: str) -> bool:
    """A key of the recipe is never taken for a method."""
    if name in Recipe.model_fields:
        return False
    return name in METHODS or ":" in name or installed("methods", name) is not None


def reaches(key: str, method: str, own: OwnOptions) -> bool:
    head, option = _parts(key)
    if of_one_method(key):
        return head == method
    return head != METHOD or not option or option in _options(method, own)


def reaches_all(key: str) -> bool:
    """Is it a key of the recipe, for all methods?"""
    return option_of(key) is None and not of_one_method(key)


def _options(method: str, own: OwnOptions) -> Iterable[str]:
    return own[method] if method in own else method_options(method)


def sort_sets(sets: Iterable[str]) -> tuple[list[str], dict[str, object]]:
    """What ``--set`` changes in the recipe, and options for methods as `check_options` takes them:
    "X" for whichever methods have it, "pipar.X" for PiPar alone."""
    own, options = [], {}
    for change in sets:
        key, sign, text = change.partition("=")
        key = key.strip()
        check_key(key, "--set")
        if not sign or reaches_all(key):
            own.append(change)
        else:
            options[key.removeprefix(f"{METHOD}.")] = parse_value(text)
    return own, options


def read_vary(varied: Iterable[str]) -> dict[str, list[object]]:
    """Of ``--vary KEY=A,B,C``: the values as in TOML, or bare words."""
    found: dict[str, list[object]] = {}
    for text in varied:
        key, _, values = (part.strip() for part in text.partition("="))
        if not key or not values:
            raise ConfigError(
                f"--vary {text}: write it as KEY=A,B,C, e.g. method.activation_cap=4,8,32"
            )
        if key in found:
            raise ConfigError(f"--vary {key}: is given twice; give all its values at once")
        check_key(key, "--vary")
        found[key] = _values(values)
    return found


def _values(text: str) -> list[object]:
    try:
        return list(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:  # bare words
        return [parse_value(word.strip()) for word in text.split(",") if word.strip()]


# ---- mistakes, before anything runs --------------------------------------------------------------


def check_key(key: str, flag: str) -> None:
    """The first part of a key; what comes after it is checked where its values are."""
    head, _ = _parts(key)
    if head in Recipe.model_fields or is_method(head):
        return
    near = get_close_matches(head, [*Recipe.model_fields, *METHODS], n=1)
    hint = f"did you mean {key.replace(head, near[0], 1)!r}? " if near else ""
    raise ConfigError(
        f"{flag} {key}: {head!r} is neither a key of the recipe nor a method; {hint}"
        f"keys are {', '.join(Recipe.model_fields)}; methods are {', '.join(METHODS)}"
    )


def check_options(options: Mapping[str, object], methods: Sequence[str], own: OwnOptions) -> None:
    """An option may be unknown to some of the methods, but not to all of them."""
    for key in options:
        _check_option(key if "." in key else f"{METHOD}.{key}", methods, own)


def check_methods(recipe: Recipe, methods: Sequence[str], own: OwnOptions) -> None:
    """The recipe's ``methods``: also what belongs to methods that are not run may be there."""
    for name, settings in recipe.methods.items():
        if name not in methods and not is_method(name):
            near = get_close_matches(name, METHODS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"methods.{name}: there is no such method{hint}")
        for option in settings.options if name in methods else ():
            _check_option(f"{name}.{option}", methods, own)


def check_varied(
    vary: Mapping[str, Sequence[object]],
    options: Mapping[str, object],
    methods: Sequence[str],
    own: OwnOptions,
) -> None:
    for key, values in vary.items():
        if (flag := _OWN_FLAGS.get(key)) is not None:
            raise ConfigError(f"--vary {key}: a sweep takes it from {flag}")
        if isinstance(values, str) or not values:
            raise ConfigError(f"--vary {key}: give at least one value")
        if any(value in values[:index] for index, value in enumerate(values)):
            raise ConfigError(f"--vary {key}: a value is given twice")
        check_key(key, "--vary")
        if not reaches_all(key):
            _check_option(key, methods, own)
    given = [key if "." in key else f"{METHOD}.{key}" for key in options]
    for method in methods:
        varied: dict[str, str] = {}
        for key in (key for key in vary if reaches(key, method, own)):
            place = _place(key)
            rivals = [k for k in given if _place(k) == place and reaches(k, method, own)]
            if rival := varied.get(place) or next(iter(rivals), None):
                raise ConfigError(
                    f"--vary {key}: {method}'s {place.removeprefix(f'{METHOD}.')} is also given by "
                    f"{rival}; leave one out"
                )
            varied[place] = key


def _check_option(key: str, methods: Sequence[str], own: OwnOptions) -> None:
    head, option = _parts(key)
    if option == "name":
        raise ConfigError(f"{key}: a comparison takes its methods from --methods")
    if head != METHOD and not is_method(head):
        check_key(key, "option")
    if head != METHOD and head not in methods:
        raise ConfigError(
            f"{key}: {head} is not among the methods that are run ({', '.join(methods)}); "
            "add it to --methods, or leave this out"
        )
    if option_of(key) is None:
        return  # its place and value are checked with the recipe
    asked = methods if head == METHOD else (head,)
    known = {option: name for name in asked for option in _options(name, own)}
    if option not in known:
        near = get_close_matches(option, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        whose = f"none of {', '.join(asked)} has" if head == METHOD else f"{head} does not have"
        has = "they have" if head == METHOD else "it has"
        raise ConfigError(
            f"{key}: {whose} this option; {hint}{has} {', '.join(sorted(known)) or 'none'}"
        )
