"""The policies of a method, made and looked at before a run is set up with them."""

from __future__ import annotations

from inspect import signature

from fedoptima.core.aggregation import AggregationPolicy
from fedoptima.core.errors import ConfigError
from fedoptima.core.flow import FlowController
from fedoptima.core.method import Method
from fedoptima.core.reuse import ReusePolicy
from fedoptima.core.scheduler import TaskScheduler

_PROTOCOLS: dict[str, type] = {  # by the part of a method, a function that makes one
    "flow": FlowController,
    "aggregation": AggregationPolicy,
    "scheduler": TaskScheduler,
    "reuse": ReusePolicy,
}


def make_policies(method: Method) -> tuple[object, ...]:
    """A fresh one of each; ConfigError if a part of the method does not make such a policy."""
    return tuple(_made(method, part, protocol) for part, protocol in _PROTOCOLS.items())


def _made(method: Method, part: str, protocol: type) -> object:
    make = getattr(method, part)
    if not callable(make):
        raise ConfigError(
            f"its {part} is a {type(make).__name__} that is made already, and each server "
            f"needs a fresh one; give what makes it, such as {part}=partial(Policy, ...)"
        )
    try:
        signature(make).bind()
    except TypeError as error:
        raise ConfigError(
            f"its {part} is made without arguments, which fails ({error}); give them with it: "
            f"{part}=partial(Policy, ...)"
        ) from error
    except ValueError:  # no signature to be had
        pass
    policy = make()
    names = {*vars(protocol), *protocol.__annotations__}
    missing = sorted(n for n in names if not n.startswith("_") and not hasattr(policy, n))
    if missing:
        raise ConfigError(
            f"its {part} is a {type(policy).__name__} without {', '.join(missing)}; it must have "
            f"all that fedoptima.methods.{protocol.__name__} has"
        )
    return policy
