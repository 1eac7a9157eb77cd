"""The laws of activations: the cap, no two credits at a time, no credit kept back."""

from __future__ import annotations

from collections.abc import Mapping

from fedoptima.core.flow import CappedFlow, FlowController
from fedoptima.core.types import NodeId
from fedoptima.testing.law_broken import LawBroken

_ROUNDING = 1e-6  # seconds


class CreditBook:
    def __init__(self, flow: FlowController) -> None:
        self._cap, self._timeout = flow.cap, flow.timeout
        self._fair = type(flow) is CappedFlow  # how another one decides is not known
        self._buffered: dict[NodeId, int] = {}
        self._granted: dict[NodeId, float] = {}  # when; until the batch is here
        self.peak = 0  # batches held at once

    def copy(self) -> CreditBook:
        other = object.__new__(CreditBook)
        vars(other).update(vars(self))
        other._buffered, other._granted = dict(self._buffered), dict(self._granted)
        return other

    @property
    def held(self) -> int:
        return sum(self._buffered.values())

    def turned_on(self, device: NodeId, at: float) -> None:
        granted = self._granted.get(device)
        if granted is not None and self._is_alive(granted, at):
            raise LawBroken("cap", f"{device} was given two credits at a time")
        self._granted[device] = at

    def came(self, device: NodeId, *, kept: bool) -> None:
        self._granted.pop(device, None)
        self._buffered[device] = self._buffered.get(device, 0) + kept

    def used(self, device: NodeId) -> None:
        self._buffered[device] = self._buffered.get(device, 0) - 1

    def forget(self, device: NodeId) -> None:
        self._buffered.pop(device, None)
        self._granted.pop(device, None)

    def check(self, at: float) -> None:
        if self._cap is None:
            return
        held = self.held
        self.peak = max(self.peak, held)
        alive = sum(1 for granted in self._granted.values() if self._is_alive(granted, at))
        if held + alive > self._cap:
            raise LawBroken("cap", f"{held} batches and {alive} credits, {self._cap} are allowed")

    def check_nobody_waits(self, at: float, samples: Mapping[NodeId, int]) -> None:
        """A device without a credit gets one as soon as one is free; where devices hold unequal
        shares of the data, those with little are held back."""
        if self._cap is None or not self._fair or len(self._granted) == len(samples):
            return
        perhaps = (granted + _ROUNDING for granted in self._granted.values())
        alive = sum(1 for granted in perhaps if self._is_alive(granted, at))
        free = self._cap - self.held - alive
        if free > 0 and len(set(samples.values())) == 1:
            waiting = sorted(samples.keys() - self._granted.keys())
            raise LawBroken("starvation", f"{waiting} wait for a credit, and {free} are free")

    def _is_alive(self, granted: float, now: float) -> bool:
        return self._timeout is None or now < granted + self._timeout
