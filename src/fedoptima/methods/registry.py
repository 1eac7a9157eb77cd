"""Methods by name: the only list of ours, those of installed packages, and those of users' code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import cast

from fedoptima.core.errors import ConfigError
from fedoptima.core.method import Method
from fedoptima.methods.cse_fsl import cse_fsl
from fedoptima.methods.fedasync import fedasync
from fedoptima.methods.fedbuff import fedbuff
from fedoptima.methods.fedoptima import fedoptima
from fedoptima.methods.fedoptima_plus import fedoptima_plus
from fedoptima.methods.fl import fl
from fedoptima.methods.oafl import oafl
from fedoptima.methods.pipar import pipar
from fedoptima.methods.splitfed import splitfed
from fedoptima.named_code import NO_CODE, AllowedCode, import_name, installed

Builder = Callable[..., Method]  # from the number of devices, and options by name

_PAPER = (fedoptima, fl, fedasync, fedbuff, splitfed, pipar, oafl)
METHODS: dict[str, Builder] = {
    build.__name__: build for build in (*_PAPER, cse_fsl, fedoptima_plus)
}
COMPARED = tuple(build.__name__ for build in (*_PAPER, cse_fsl))  # what "all" means
PAPER_METHODS = tuple(build.__name__ for build in _PAPER)  # FedOptima and the paper's baselines


def find_method(
    name: str, code: AllowedCode = NO_CODE, given: Mapping[str, Builder] | None = None
) -> Builder:
    """``code``: what a name such as "package.module:function" may load. ``given``: in Python."""
    if given and name in given:
        return given[name]
    if name in METHODS:
        return METHODS[name]
    if ":" in name:
        return cast("Builder", code.load(name, "method.name"))
    if (build := installed("methods", name)) is not None:
        return cast("Builder", build)
    near = ["fl"] if name.lower() == "fedavg" else get_close_matches(name, METHODS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(
        f"method.name = {name!r}: unknown{hint} (there are {', '.join(METHODS)}; a method of your "
        "own is 'package.module:function'; one that was given in Python has to be given again)"
    )


def method_options(
    name: str, code: AllowedCode = NO_CODE, given: Mapping[str, Builder] | None = None
) -> dict[str, object]:
    """The options of a method with their defaults."""
    return options_of(find_method(name, code, given))


def options_of(build: Builder) -> dict[str, object]:
    """What it takes besides the number of devices."""
    try:
        _, *others = signature(build).parameters.values()
    except (TypeError, ValueError):
        raise ConfigError(
            f"method={name_of(build)}: is not a method: it must take the number of devices, and "
            "options by name"
        ) from None
    named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return {p.name: p.default for p in others if p.kind in named}


def defaults_then(
    name: str, given: Mapping[str, object], recorded: Mapping[str, object]
) -> dict[str, object]:
    """What a run's recipe left to a default of ours that was another one when the run began.

    ``recorded``: all options that it began with. An open limit (None) stays open: its figure there
    is what it came to.
    """
    today = options_of(METHODS[name]) if name in METHODS else {}
    return {
        option: value
        for option, value in recorded.items()
        if option in today
        and option not in given
        and type(today[option]) is type(value)
        and today[option] != value
    }


def name_of(build: Builder) -> str:
    """What a recipe calls a method that is given in Python."""
    for ours in METHODS:
        if build is METHODS[ours]:
            return ours
    if (importable := import_name(build)) is not None:
        return importable
    own = getattr(build, "__name__", None) or getattr(
        getattr(build, "func", None), "__name__", type(build).__name__
    )
    if own in METHODS:
        raise ConfigError(f"method={own}: there is a method of this name; call yours otherwise")
    return str(own) if str(own).isidentifier() else "custom"
