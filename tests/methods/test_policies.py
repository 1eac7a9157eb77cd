"""A policy that somebody wrote from scratch and that is not complete."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.methods import (
    AsyncStaleness,
    Buffered,
    DelayLimit,
    Method,
    OpenFlow,
    ProgramSpec,
    StalenessRule,
)
from fedoptima.methods.fedasync import fedasync
from fedoptima.methods.fedoptima import fedoptima
from fedoptima.methods.fl import fl
from fedoptima.methods.policies import make_policies
from fedoptima.methods.registry import METHODS
from fedoptima.testing import check_method


class LastFirst:
    """A scheduler with the two methods that its author has thought of."""

    def __init__(self) -> None:
        self.items: deque[tuple[str, Any]] = deque()
        self.buffered = 0

    def put(self, origin: str, item: Any, cost: float = 1) -> None:
        self.items.append((origin, item))

    def get(self) -> Any:
        return self.items.pop()


def last_first(devices: int) -> Method:
    return replace(fedoptima(devices), scheduler=LastFirst)  # type: ignore[arg-type]


def made_already(devices: int) -> Method:
    policy = AsyncStaleness(DelayLimit(8), StalenessRule("polynomial"))
    return replace(fedasync(devices), aggregation=policy)  # type: ignore[arg-type]


def test_what_a_policy_lacks_is_named() -> None:
    expected = r"scheduler is a LastFirst without check, join, leave, waiting; .*TaskScheduler has"
    with pytest.raises(ConfigError, match=expected):
        make_policies(last_first(3))


@pytest.mark.parametrize(
    ("build", "words"), [(last_first, "a LastFirst without"), (made_already, "made already")]
)
def test_check_method_says_what_a_run_would_say(build: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_method(build, examples=1)


LIMIT = DelayLimit(8)


@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        (replace(fedoptima(3), flow=OpenFlow), r"would never train; give flow=partial\(CappedFlow"),
        (
            replace(fedasync(3), aggregation=partial(Buffered, 2, LIMIT)),
            r"give ProgramSpec\('full', delta=True\)",
        ),
        (
            replace(fedasync(3), program=ProgramSpec("full", delta=True)),
            "leave delta=True out .* or take Buffered",
        ),
        (replace(fl(3), program=ProgramSpec("full", delta=True)), "leave delta=True out"),
    ],
)
def test_policies_that_do_not_fit_what_devices_do_are_refused(method: Method, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        make_policies(method)


@pytest.mark.parametrize("name", METHODS)
def test_our_own_are_complete(name: str) -> None:
    assert len(make_policies(METHODS[name](3))) == 4


def test_a_policy_that_is_made_from_another_is_complete() -> None:
    policy = partial(AsyncStaleness, DelayLimit(8), StalenessRule("polynomial"))
    make_policies(replace(fedasync(3), aggregation=policy))
