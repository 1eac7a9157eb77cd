"""The laws of activation reuse: only what was trained on before, only while nothing else is left
to do, the least used first, not too often, not too old, never more than may be kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedoptima.core.events import Event, JobDone, JobFailed, Rejected
from fedoptima.core.jobs import Merge, ReusedStep, ServerStep
from fedoptima.core.reuse import LeastUsed, NoReuse, ReusePolicy
from fedoptima.core.robust import faults
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.testing.law_broken import LawBroken

_LAW = "reuse"


@dataclass(frozen=True)
class _Batch:
    device: NodeId
    number: int  # in the order of their first use
    version: int
    uses: int = 0  # after the first


class ReuseBook:
    def __init__(self, policy: ReusePolicy) -> None:
        self._off = type(policy) is NoReuse
        # How a user's policy decides is not known.
        self._rule = policy.rule if type(policy) is LeastUsed else None
        self._batches: dict[PayloadId, _Batch] = {}
        self._number = 0
        self._distrusted: Mapping[NodeId, int] = {}  # the last session that is

    def copy(self) -> ReuseBook:
        other = object.__new__(ReuseBook)
        vars(other).update(vars(self))
        other._batches = dict(self._batches)
        return other

    def see(self, event: Event, version: int, sessions: Mapping[NodeId, int]) -> None:
        match event:
            case JobDone(job=ServerStep() as step) if not isinstance(step, ReusedStep):
                if step.session <= self._distrusted.get(step.origin, -1):
                    return
                self._number += 1
                here = sessions.get(step.origin) == step.session
                if self._rule is None or here or self._rule.on_leave == "keep":
                    self._batches[step.data.id] = _Batch(step.origin, self._number, version)
            case JobDone(job=Merge(parts=parts), text=text):
                for number in faults(text):
                    self._distrust(parts[number].device, sessions)
            case JobFailed(job=ServerStep(origin=device)):
                self._distrust(device, sessions)
            case Rejected(sender, session) if sessions.get(sender) == session:
                self._distrust(sender, sessions)

    def used_again(self, step: ReusedStep, version: int, waiting: int) -> None:
        """``waiting``: fresh batches and updates that the server could work on instead."""
        if waiting:
            raise LawBroken(_LAW, f"{step} goes before {waiting} others that wait")
        batch = self._batches.get(step.data.id)
        if self._off or batch is None:
            raise LawBroken(_LAW, f"trained again on {step.data.id}, which may not be")
        if self._rule is not None:
            usable = self._usable(version)
            if step.data.id not in usable:
                raise LawBroken(_LAW, f"{batch}: too old, or used too often ({self._rule})")
            least = min(usable.values(), key=lambda found: (found.uses, found.number))
            if batch != least:
                raise LawBroken(_LAW, f"{batch} was used again before {least}")
        self._batches[step.data.id] = replace(batch, uses=batch.uses + 1)

    def left(self, device: NodeId) -> None:
        if self._rule is not None and self._rule.on_leave == "forget":
            self._forget(device)

    def _distrust(self, device: NodeId, sessions: Mapping[NodeId, int]) -> None:
        self._forget(device)
        if device in sessions:
            self._distrusted = {**self._distrusted, device: sessions[device]}

    def _forget(self, device: NodeId) -> None:
        self._batches = {key: b for key, b in self._batches.items() if b.device != device}

    def check(self, version: int, policy: ReusePolicy, *, idle: bool) -> None:
        if self._rule is None:
            return
        usable = self._usable(version)
        if idle and usable:
            raise LawBroken(_LAW, f"the engine is idle, and {list(usable)} could be used again")
        if not len(usable) <= policy.kept <= self._rule.batches:
            kept = f"{policy.kept} batches are kept"
            raise LawBroken(_LAW, f"{kept}, {len(usable)} can be used again ({self._rule})")

    def _usable(self, version: int) -> dict[PayloadId, _Batch]:
        """Those that may be used once more, now."""
        rule = self._rule
        assert rule is not None
        return {
            key: batch
            for key, batch in self._batches.items()
            if batch.uses < rule.uses
            and self._number - batch.number < rule.batches
            and (rule.max_age is None or version - batch.version <= rule.max_age)
        }
