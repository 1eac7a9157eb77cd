"""The public property tests: our methods pass them, and methods with a fault do not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.core.flow import CappedFlow, Reception
from fedoptima.core.influence import EQUAL, Share
from fedoptima.core.types import NodeId
from fedoptima.methods import (
    AsyncStaleness,
    Barrier,
    Decision,
    Merge,
    Offer,
    Part,
)
from fedoptima.methods.fedasync import fedasync
from fedoptima.methods.fedoptima import fedoptima
from fedoptima.methods.fl import fl
from fedoptima.methods.registry import METHODS
from fedoptima.testing import LAWS, check_method
from fedoptima.testing.checking import _laws, check_laws


@pytest.mark.parametrize("name", METHODS)
def test_our_own_methods_pass(name: str) -> None:
    check_method(METHODS[name], examples=3)


def test_a_method_that_draws_some_devices_passes() -> None:
    check_method(fl, examples=5, participation=0.3)


def test_every_law_that_is_named_is_checked() -> None:
    assert tuple(_laws(None)) == LAWS  # type: ignore[arg-type]


# ---- each law is broken by somebody --------------------------------------------------------------


class Deaf(AsyncStaleness):
    """Never answers."""

    def offer(self, offer: Offer) -> Decision:
        return Decision(settled=((offer.device, offer.update),))


class Greedy(AsyncStaleness):
    """Merges the first device's updates, and answers the others' without a merge."""

    def offer(self, offer: Offer) -> Decision:
        if offer.device == "d0":
            return super().offer(offer)
        settled = ((offer.device, offer.update),)
        return Decision(refresh=(offer.device,), settled=settled, counted=1.0)


class Twice(AsyncStaleness):
    """Merges what it has merged before."""

    def __init__(self, delay: int) -> None:
        super().__init__(delay)
        self.old: list[Part] = []

    def offer(self, offer: Offer) -> Decision:
        decision = super().offer(offer)
        if decision.merge is None:
            return decision
        merge = decision.merge
        parts = tuple(sorted((*merge.parts, *self.old), key=lambda part: part.device))
        self.old = list(merge.parts)
        return replace(decision, merge=Merge(merge.keep, parts, merge.refresh))


class Moody(AsyncStaleness):
    """Decides by something that no checkpoint knows."""

    asked = count()

    def weight(self, offer: Offer) -> float:
        return 1 / (2 + next(Moody.asked) % 7)


class Overflowing(CappedFlow):
    """Says 2, and lets every device send."""

    def received(self, device: NodeId, now: float, share: Share = EQUAL) -> Reception:
        return Reception(super().received(device, now, share).accepted, (device,))

    def check(self, buffered: int) -> None:
        pass


class Closed(CappedFlow):
    """Turns nobody on."""

    def joined(self, device: NodeId, now: float, share: Share = EQUAL) -> tuple[NodeId, ...]:
        return ()

    def expire(self, now: float) -> tuple[NodeId, ...]:
        return ()


class Patient(Barrier):
    """Waits for devices that hang for ever."""

    deadline = property(lambda self: None, lambda self, value: None)  # type: ignore[assignment]

    def check(self) -> None:
        pass


def asynchronous(policy: type[AsyncStaleness]) -> object:
    return lambda devices: replace(fedasync(devices), aggregation=partial(policy, 24))


BROKEN = {
    "never answers": ("ends", asynchronous(Deaf)),
    "merges twice": ("ends", asynchronous(Twice)),
    "by chance": ("same again", asynchronous(Moody)),
    "overflows": (
        "cap",
        lambda devices: replace(fedoptima(devices), flow=partial(Overflowing, 2)),
    ),
    "waits for ever": ("hung devices", lambda devices: replace(fl(devices), aggregation=Patient)),
    "starves": ("no starvation", asynchronous(Greedy)),
    "lets nobody send": (
        "no starvation",
        lambda devices: replace(fedoptima(devices), flow=partial(Closed, 8)),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_method_with_a_fault_does_not_pass(name: str) -> None:
    law, build = BROKEN[name]
    with pytest.raises(Exception) as found:  # noqa: PT011  (the fault's own, whatever it is)
        check_laws(build, [law], 40, smallest=False)  # type: ignore[arg-type]
    assert f"breaks the law {law!r}" in "\n".join(found.value.__notes__)


# ---- mistakes ------------------------------------------------------------------------------------


def test_what_a_checkpoint_cannot_hold_is_named() -> None:
    class Held(AsyncStaleness):
        def __init__(self, delay: int) -> None:
            super().__init__(delay)
            self.seen: set[str] = set()

    with pytest.raises(ConfigError, match=r"builtins\.set cannot be stored"):
        check_method(asynchronous(Held))  # type: ignore[arg-type]


def test_a_law_that_does_not_exist_cannot_be_skipped() -> None:
    with pytest.raises(ValueError, match="no law 'speed'; there are ends, "):
        check_method(fl, skip=["speed"])


def test_something_that_is_no_method_is_refused() -> None:
    with pytest.raises(TypeError, match="must return a Method, and returned 8"):
        check_method(lambda devices: 8)  # type: ignore[arg-type, return-value]


def test_without_hypothesis_it_says_what_is_missing() -> None:
    script = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from fedoptima.testing import check_method\n"
        "from fedoptima.methods.fl import fl\n"
        "try: check_method(fl)\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "pip install hypothesis" in done.stdout, done.stderr
