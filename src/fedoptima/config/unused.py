"""Settings that the optimiser beside them does not take, and that would change nothing.

They are looked for in what a user has written, not in a whole recipe: in one that is read back from
a run's folder each key has a value, and sgd's may stand beside another name that was set later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedoptima.config.own_settings import laid_over
from fedoptima.core.errors import ConfigError

OF_SGD_ALONE = ("momentum", "nesterov")


def refuse_unused(written: Mapping[str, Any], whole: Mapping[str, Any], where: str) -> None:
    """``written``: what was given together; ``whole``: the recipe that it becomes part of."""
    found = [f"{where}: {line}" for line in _unused(written, whole)]
    for name, own in _table(written, "methods").items():
        if isinstance(own, Mapping):
            lines = _unused(own, laid_over(whole, own))
            found += [f"{where}: methods.{name}.{line}" for line in lines]
    if found:
        raise ConfigError("\n".join(found))


def _unused(written: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[str]:
    for side in ("device", "server"):
        given = _table(_table(written, "training"), side)
        name = _table(_table(whole, "training"), side).get("name", "sgd")
        for key in OF_SGD_ALONE if name != "sgd" else ():
            if given.get(key):
                yield (
                    f"training.{side}.{key}: is read for name = 'sgd' only, not for {name}; leave "
                    f"it out. What {name} takes is learning_rate, weight_decay and its own "
                    "arguments, by name, in options" + _EXAMPLES.get(name, "")
                )


_EXAMPLES = dict.fromkeys(("adam", "adamw"), ": options = { betas = [0.9, 0.999] }")


def _table(place: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = place.get(key)
    return inner if isinstance(inner, Mapping) else {}
