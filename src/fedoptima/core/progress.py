"""How far a run has come: rounds, epochs, evaluations asked for and answered, and why it ends.

A global round is as many merges as devices were present when it began (a barrier's merge is one
round). An epoch is as many samples, trained on and accepted, as all devices in the run together
hold: the paper's footnote, and the unit that compares methods (docs/decisions/0006).
"""

from __future__ import annotations

import math

from fedoptima.core.effects import Effect, Evaluate
from fedoptima.core.stopping import Stopper, StopRule
from fedoptima.core.types import NodeId

MOST_REFUSED = 3.0  # epochs of refused training in a row that end a run
_OF_ONE = 2 * MOST_REFUSED  # times its share: one device alone, or less than half, cannot end it
_LARGE = 0.1  # of the budget: where updates are larger, the nearest one ends the run
_ROUNDING = 1e-9  # epochs are sums of shares: ten tenths may come to 0.9999999999999999


class Progress:
    _last_update = 0.0  # in epochs; here, because checkpoints of earlier versions do not have it

    def __init__(self, rule: StopRule, evaluate_every: float) -> None:
        self._rule = rule
        self._stopper = Stopper(rule)
        self._every = evaluate_every
        self._began = 0.0
        self._merges = 0.0  # in this round, of usual devices
        self._round_size = 1
        self._round_began = 0.0  # epochs, behind a barrier
        self._last_round = 0.0  # its size in epochs; 0 without a barrier
        self._marks = 0  # evaluations that were due so far
        self._asked = 0
        self._open: dict[int, float] = {}  # evaluation -> epochs when it was asked for
        self._refused: dict[NodeId, float] = {}  # epochs, since an update was accepted
        self.rounds = 0
        self.epochs = 0.0
        self.weights_changed = True  # since the last evaluation: no run ends without one
        self.closing: str | None = None  # why there is no new work any more
        self.failed = False  # ends with an error

    def begin(self, now: float, members: int) -> None:
        self._began = now
        self._round_size = max(1, members)

    def trained(self, epochs: float) -> None:
        """An update that trained for this part of an epoch was accepted."""
        self.epochs += epochs
        self._last_update = epochs
        self._refused.clear()

    def refused(
        self, device: NodeId, epochs: float, *, share: float, max_delay: int | None
    ) -> None:
        """An update came too late. It advances neither budget nor schedule.

        ``share``: the device's part of an epoch. ``max_delay``: None if it stood out instead.
        """
        refused = self._refused.get(device, 0.0) + epochs
        self._refused[device] = min(refused, _OF_ONE * share)
        if sum(self._refused.values()) >= MOST_REFUSED - _ROUNDING:
            self.failed = True
            why = (
                f"all were more versions behind than method.max_delay = {max_delay} allows. Raise "
                "it, leave it out (then only long absences count), or let devices train shorter "
                "rounds (training.iterations)"
            )
            if max_delay is None:
                why = (
                    "method.robust = 'refuse' found them too different from the others'. If the "
                    "devices are honest, their data differ too much for it: use 'clip'"
                )
            self.closing = f"no update was accepted for {MOST_REFUSED:g} epochs of training: {why}"

    def merged(self, updates: float, *, closes_round: bool, members: int) -> None:
        self.weights_changed = True
        self._merges += updates
        if closes_round:
            self._last_round = self.epochs - self._round_began
            self._round_began = self.epochs
        if closes_round or self._merges >= self._round_size - _ROUNDING:
            self.rounds += 1
            self._merges = 0.0
            self._round_size = max(1, members)

    @property
    def rule(self) -> StopRule:
        return self._rule

    def extend(self, rule: StopRule) -> float:
        """Another budget; returns when the training began."""
        self._rule = self._stopper.rule = rule
        self.closing, self.failed = None, False
        return self._began

    def end(self, reason: str) -> list[Effect]:
        self.closing = self.closing or reason
        return []

    def share(self, now: float) -> float:
        """The share of the training budget that is spent."""
        return self._rule.progress(
            rounds=self.rounds, epochs=self.epochs, seconds=now - self._began
        )

    def spent(self) -> str | None:
        """Behind a barrier at the end of the round that is nearest to the budget.

        Otherwise with the update that reaches the budget; where single updates are a large part of
        it, with the nearest one as well. (One device that leaves out an incomplete batch hands in
        0.96 epochs: a budget of 1 would end at 1.92.)
        """
        step = self._last_round
        if not step and self._last_update > _LARGE * (self._rule.epochs or math.inf):
            step = self._last_update
        return self._stopper.spent(rounds=self.rounds, epochs=self.epochs, within=step / 2)

    def evaluation_due(self) -> bool:
        """Whenever so many epochs are over; where a barrier's rounds are about as long, or an
        update is (of a device that is alone, say), with the nearest one.

        A round is often 0.99 epochs, since incomplete batches are left out: the first one would
        not be evaluated, and the time to an accuracy that it reached would be told twice as long.
        """
        size = self._last_round or self._last_update
        within = min(size, self._every) / 2 if size > self._every / 2 else 0.0
        marks = int((self.epochs + within + _ROUNDING) // self._every)
        due, self._marks = marks > self._marks, max(marks, self._marks)
        return due

    def take_stock(self, version: int) -> list[Effect]:
        """After an update: evaluate if an epoch is over, stop if the budget is spent."""
        if self.closing is not None:
            return []
        due = self.evaluation_due()
        self.closing = self.spent()
        if self.closing is not None:  # which ends with an evaluation anyway
            return []
        return [self.evaluate(version)] if due else []

    def evaluate(self, version: int) -> Evaluate:
        self.weights_changed = False
        self._asked += 1
        self._open[self._asked] = self.epochs
        return Evaluate(self._asked, self.epochs, version)

    def answered(self, index: int, metrics: dict[str, float]) -> None:
        reason = self._stopper.evaluated(metrics, epochs=self._open.pop(index))
        self.closing = self.closing or reason

    @property
    def waiting(self) -> bool:
        return bool(self._open)
