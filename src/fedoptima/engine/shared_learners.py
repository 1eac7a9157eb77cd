"""What the devices of one process use in turn, each for a round.

A device has a learner while it is in a round. So as many are made as devices are in one at the same
time, not as many as there are devices, and their memory is used again and again.
"""

from __future__ import annotations

from collections.abc import Callable

from fedoptima.core.codecs import Codec
from fedoptima.engine.learner import Learner
from fedoptima.engine.payload_validation import ExpectedModel


class SharedLearners:
    def __init__(self) -> None:
        self._spare: dict[str, list[Learner]] = {}  # by plan
        self._expected: dict[tuple[str, Codec], ExpectedModel] = {}

    def take(self, plan: str, who: str, make: Callable[[], Learner]) -> Learner:
        spare = self._spare.get(plan)
        if not spare:
            return make()
        learner = spare.pop()
        learner.begin_anew(who)
        return learner

    def give_back(self, plan: str, learner: Learner) -> None:
        self._spare.setdefault(plan, []).append(learner)

    def expected(self, plan: str, codec: Codec, make: Callable[[], ExpectedModel]) -> ExpectedModel:
        """What is allowed in a model or an update is the same for all devices of a plan."""
        if (plan, codec) not in self._expected:
            self._expected[plan, codec] = make()
        return self._expected[plan, codec]
