"""Activation reuse: what a server trains on again while nothing else is left to do.

Not in the paper (docs/decisions/0037). A server whose queue is empty trains once more on one of the
last batches that it has trained on: on the least used one, and of those on the oldest. It takes one
step and then looks again, so neither a fresh batch nor an update ever waits for more than that.
Uses are limited, so a server to which nothing comes any more soon rests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, Protocol

from fedoptima.core.errors import ConfigError, InvariantBroken
from fedoptima.core.jobs import ReusedStep, ServerStep, cut_of
from fedoptima.core.types import NodeId


@dataclass(frozen=True, slots=True)
class ReuseRule:
    batches: int = 64  # kept: the last ones
    uses: int = 4  # of each, after the first
    max_age: int | None = None  # merges since its first use; None: any number
    on_leave: Literal["keep", "forget"] = "keep"  # what a device has sent, when it leaves

    def __post_init__(self) -> None:
        for name, least in (("batches", 1), ("uses", 1), ("max_age", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"method.reuse.{name} = {value}: must be at least {least}")


class ReusePolicy(Protocol):
    # A batch was trained on for the first time. ``here``: its device has not left meanwhile.
    def keep(self, step: ServerStep, version: int, *, here: bool) -> None: ...
    def next(self, version: int, progress: float) -> ReusedStep | None: ...
    def left(self, device: NodeId) -> None: ...
    def forget(self, device: NodeId) -> None: ...  # what it has sent must not be used
    def check(self) -> None: ...
    @property
    def kept(self) -> int: ...  # batches


class NoReuse:
    """As in the paper: every batch is trained on once."""

    kept = 0

    def keep(self, step: ServerStep, version: int, *, here: bool) -> None:
        pass

    def next(self, version: int, progress: float) -> ReusedStep | None:
        return None

    def left(self, device: NodeId) -> None:
        pass

    def forget(self, device: NodeId) -> None:
        pass

    def check(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Kept:
    """A batch that may be used again."""

    number: int  # of all batches there have been
    version: int  # at its first use
    step: ServerStep


class LeastUsed:
    """The last batches, each at most so many times more."""

    def __init__(self, rule: ReuseRule) -> None:
        self.rule = rule
        # By the number of uses so far. The least used goes first and moves up behind those that
        # came before it, so each of these queues is in the order of arrival.
        self._used: list[deque[Kept]] = [deque() for _ in range(rule.uses)]
        self._number = 0
        self._bytes = 0

    @property
    def kept(self) -> int:
        return sum(map(len, self._used))

    def keep(self, step: ServerStep, version: int, *, here: bool) -> None:
        self._number += 1  # a forgotten one takes its place, too: the others grow older
        if here or self.rule.on_leave == "keep":
            self._used[0].append(Kept(self._number, version, step))
            self._bytes += step.data.nbytes
        self._let_go(version)

    def next(self, version: int, progress: float) -> ReusedStep | None:
        self._let_go(version)
        for uses, queue in enumerate(self._used):
            if queue:
                kept, held = queue.popleft(), self._bytes
                step = kept.step
                if uses + 1 < self.rule.uses:
                    self._used[uses + 1].append(kept)
                else:
                    self._bytes -= step.data.nbytes
                return ReusedStep(
                    *(step.origin, step.session, step.seq, step.data, progress),
                    use=uses + 1,
                    kept=held,
                    cut=cut_of(step),
                )
        return None

    def left(self, device: NodeId) -> None:
        if self.rule.on_leave == "forget":
            self.forget(device)

    def forget(self, device: NodeId) -> None:
        self._used = [deque(k for k in queue if k.step.origin != device) for queue in self._used]
        self._bytes = self._sum()

    def _let_go(self, version: int) -> None:
        """Of batches that are too old; the oldest are first in their queues."""
        first, age = self._number - self.rule.batches, self.rule.max_age
        for queue in self._used:
            while queue and (
                queue[0].number <= first or (age is not None and version - queue[0].version > age)
            ):
                self._bytes -= queue.popleft().step.data.nbytes

    def _sum(self) -> int:
        return sum(kept.step.data.nbytes for queue in self._used for kept in queue)

    def check(self) -> None:
        if self._bytes != self._sum():
            raise InvariantBroken(f"{self._bytes} bytes counted, {self._sum()} are kept")
        if self.kept > self.rule.batches:
            raise InvariantBroken(f"{self.kept} batches are kept, at most {self.rule.batches} may")
        for queue in self._used:
            if any(a.number >= b.number for a, b in zip(queue, list(queue)[1:], strict=False)):
                raise InvariantBroken("batches of equally many uses are not in their order")
