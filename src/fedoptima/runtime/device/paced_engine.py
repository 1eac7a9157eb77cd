"""A device slowed to a stated speed: each job lasts as long as its work takes at that speed.

For experiments: a testbed of slow devices on one machine, in real time. The maths stays what it is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fedoptima.core.errors import ConfigError
from fedoptima.core.jobs import Job, Prepare
from fedoptima.core.machine import Outcome
from fedoptima.core.messages import Message
from fedoptima.core.plan import Plan
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.preprocess.job_costs import JobCosts, Rates
from fedoptima.runtime.device.device_node import NetworkDeviceEngine

_log = logging.getLogger("fedoptima.device")

HANDOVER = 0.005  # seconds: a job that comes so soon after the last one was not waited for
MOST_LATE = 0.1  # seconds: as much lateness is made good by jobs that follow; the rest is lost
JUDGED = 50  # jobs: how far back to look when asking whether the machine keeps the speed
TOO_SLOW = 1.2  # times the stated duration


class PacedEngine:
    """``wait`` returns after so many seconds, or at once when the device is to end.

    Jobs that follow each other directly are due back to back, so that neither a late awakening nor
    the way through the event loop adds up. A plan passes by in `Prepare`; before, nothing is paced.
    """

    def __init__(
        self,
        engine: NetworkDeviceEngine,
        node: NodeId,
        *,
        rates: Rates,
        batch: int,
        state_tensors: int = 0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        speed = rates.flops_per_second
        if not speed > 0:
            raise ConfigError(f"{node}: {speed:g} FLOP/s: must be above 0")
        self._engine = engine
        self._node = node
        self._rates = rates
        self._batch = batch
        self._state = state_tensors  # that the optimiser keeps for each weight
        self._clock = clock
        self._wait = wait
        self._costs: JobCosts | None = None
        self._due = self._ended = float("-inf")  # of the last job: when it was, when it did end
        self._audit = _Audit(node, speed)

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        began = self._clock()
        outcome = self._engine.execute(job, result)
        if isinstance(job, Prepare):
            self._costs = JobCosts(Plan.from_json(job.plan), device_state=self._state)
        elif self._costs is not None:
            seconds = self._costs.seconds(job, self._batch, self._rates)
            if seconds > 0:
                self._fill(began, seconds)
        return outcome

    def admit(self, message: Message) -> None:
        self._engine.admit(message)

    def receive(self, message: Message) -> Message:
        return self._engine.receive(message)

    def _fill(self, began: float, seconds: float) -> None:
        follows = began - self._ended <= HANDOVER
        self._due = (max(self._due, began - MOST_LATE) if follows else began) + seconds
        early = self._due - self._clock()
        if early > 0:
            self._wait(early)
        self._ended = self._clock()
        self._audit.add(self._ended - began, seconds)


class _Audit:
    """Says once if the machine cannot keep the stated speed: the experiment is then another one."""

    def __init__(self, node: NodeId, flops_per_second: float) -> None:
        self._node = node
        self._speed = flops_per_second
        self._said = False
        self._begin()

    def _begin(self) -> None:
        self._jobs, self._taken, self._stated = 0, 0.0, 0.0

    def add(self, taken: float, stated: float) -> None:
        self._jobs += 1
        self._taken += taken
        self._stated += stated
        if self._jobs < JUDGED:
            return
        if self._taken > TOO_SLOW * self._stated and not self._said:
            self._said = True
            _log.warning(
                "%s is to compute at %.3g GFLOP/s but reaches %.3g here: state a lower speed, "
                "or run fewer devices on this machine",
                self._node,
                self._speed / 1e9,
                self._speed / 1e9 * self._stated / self._taken,
            )
        self._begin()
