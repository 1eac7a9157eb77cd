"""The only list of methods."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from inspect import signature
from typing import cast

from fedoptima.core.errors import ConfigError
from fedoptima.core.method import Method
from fedoptima.methods.fedasync import fedasync
from fedoptima.methods.fedbuff import fedbuff
from fedoptima.methods.fedoptima import fedoptima
from fedoptima.methods.fl import fl
from fedoptima.methods.oafl import oafl
from fedoptima.methods.pipar import pipar
from fedoptima.methods.splitfed import splitfed
from fedoptima.named_code import installed

_BUILDERS = (fedoptima, fl, fedasync, fedbuff, splitfed, pipar, oafl)
METHODS: dict[str, Callable[..., Method]] = {build.__name__: build for build in _BUILDERS}


def find_method(name: str) -> Callable[..., Method]:
    if name not in METHODS:
        if (build := installed("methods", name)) is not None:
            return cast("Callable[..., Method]", build)
        near = get_close_matches(name, METHODS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"method.name = {name!r}: unknown{hint} (there are {', '.join(METHODS)})")
    return METHODS[name]


def method_options(name: str) -> dict[str, object]:
    """The options of a method with their defaults."""
    parameters = signature(find_method(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
