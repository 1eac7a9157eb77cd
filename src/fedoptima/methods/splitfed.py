"""SplitFed: the network is split, the server has a copy for each device; rounds end together."""

from __future__ import annotations

from functools import partial
from typing import Literal

from fedoptima.core.barrier import Barrier
from fedoptima.core.flow import OpenFlow
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.robust import RobustBarrier
from fedoptima.core.scheduler import FifoScheduler


def splitfed(
    devices: int,
    *,
    on_leave: Literal["drop", "wait"] = "drop",  # what a leaving device does to the barrier
    barrier_timeout: float | None = None,  # seconds; None: 30 predicted rounds, at least 300
    robust: RobustBarrier = "none",
) -> Method:
    return Method(
        name="splitfed",
        program=ProgramSpec("gradient"),
        training=ServerTraining.PER_DEVICE,
        aggregation=partial(Barrier, on_leave=on_leave, timeout=barrier_timeout),
        scheduler=FifoScheduler,
        flow=OpenFlow,
        robust=robust,
    )
