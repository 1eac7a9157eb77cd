"""FedAsync: every device trains the whole model; each update is merged as it arrives."""

from __future__ import annotations

from functools import partial
from typing import Literal

from fedoptima.core.aggregation import AsyncStaleness, DelayLimit
from fedoptima.core.flow import OpenFlow
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.robust import Robust
from fedoptima.core.scheduler import FifoScheduler
from fedoptima.core.staleness import StalenessRule


def fedasync(
    devices: int,
    *,
    max_delay: int | None = None,  # D; None: 8 K, of what was merged during an absence
    staleness: Literal["inverse", "constant", "polynomial", "hinge"] = "polynomial",
    alpha: float = 0.8,
    alpha_max: float = 1.0,
    staleness_a: float = 0.5,
    staleness_b: float = 4.0,
    robust: Robust = "none",
) -> Method:
    delay = 8 * devices if max_delay is None else max_delay
    limit = DelayLimit(delay, while_away=max_delay is None)
    rule = StalenessRule(staleness, alpha, staleness_a, staleness_b, alpha_max)
    return Method(
        name="fedasync",
        program=ProgramSpec("full"),
        training=ServerTraining.NONE,
        aggregation=partial(AsyncStaleness, limit, rule),
        scheduler=FifoScheduler,
        flow=OpenFlow,
        robust=robust,
        resolved={"max_delay": delay},
    )
