"""FedBuff: every device trains the whole model; changes are collected and applied Z at a time."""

from __future__ import annotations

from functools import partial
from typing import Literal

from fedoptima.core.aggregation import Buffered, DelayLimit
from fedoptima.core.flow import OpenFlow
from fedoptima.core.jobs import ServerOptimizer
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.robust import Robust
from fedoptima.core.scheduler import FifoScheduler
from fedoptima.core.staleness import StalenessRule


def fedbuff(
    devices: int,
    *,
    buffer: int | None = None,  # Z; None: 10 as published, but never more than K
    max_delay: int | None = None,  # D; None: 8 K, of what was merged during an absence
    staleness: Literal["inverse", "constant", "polynomial", "hinge"] = "polynomial",
    staleness_a: float = 0.5,
    staleness_b: float = 4.0,
    server_learning_rate: float = 1.0,
    server_momentum: float = 0.0,
    robust: Robust = "none",
) -> Method:
    size = min(10, devices) if buffer is None else buffer
    delay = 8 * devices if max_delay is None else max_delay
    limit = DelayLimit(delay, while_away=max_delay is None)
    rule = StalenessRule(staleness, 1.0, staleness_a, staleness_b)
    optimizer = ServerOptimizer(server_learning_rate, server_momentum)
    return Method(
        name="fedbuff",
        program=ProgramSpec("full", delta=True),
        training=ServerTraining.NONE,
        aggregation=partial(Buffered, size, limit, rule=rule, server_optimizer=optimizer),
        scheduler=FifoScheduler,
        flow=OpenFlow,
        robust=robust,
        resolved={"buffer": size, "max_delay": delay},
    )
