"""The policies of a method, made and looked at before a run is set up with them."""

from __future__ import annotations

from inspect import signature

from fedoptima.core.aggregation import AggregationPolicy, AsyncStaleness, Buffered
from fedoptima.core.barrier import Barrier
from fedoptima.core.errors import ConfigError
from fedoptima.core.flow import FlowController, OpenFlow
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
    made = {part: _made(method, part, protocol) for part, protocol in _PROTOCOLS.items()}
    _check_flow(method, made["flow"])
    _check_deltas(method, made["aggregation"])
    return tuple(made.values())


def _check_flow(method: Method, flow: object) -> None:
    if method.program.kind == "auxiliary" and isinstance(flow, OpenFlow):
        raise ConfigError(
            "its flow is OpenFlow, which turns no device on, and with ProgramSpec('auxiliary') a "
            "device sends nothing until it is turned on: the server would never train; give "
            "flow=partial(CappedFlow, ...)"
        )


def _check_deltas(method: Method, policy: object) -> None:
    """What a policy of ours merges, whole models or their changes, is what devices hand in."""
    takes_deltas = isinstance(policy, Buffered)
    if takes_deltas and not method.program.delta:
        raise ConfigError(
            f"its aggregation is {type(policy).__name__}, which applies changes, and its devices "
            f"hand in whole models; give ProgramSpec({method.program.kind!r}, delta=True)"
        )
    if method.program.delta and not takes_deltas and isinstance(policy, AsyncStaleness | Barrier):
        raise ConfigError(
            f"its aggregation is {type(policy).__name__}, which merges whole models, and its "
            "devices hand in changes; leave delta=True out of its ProgramSpec, or take Buffered"
        )


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
