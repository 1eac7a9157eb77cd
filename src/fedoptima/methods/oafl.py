"""OAFL: SplitFed with FedAsync's aggregation of both sides (the paper's section 2.2)."""

from __future__ import annotations

from functools import partial

from fedoptima.core.aggregation import AsyncStaleness, DelayLimit
from fedoptima.core.flow import OpenFlow
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.scheduler import FifoScheduler
from fedoptima.core.staleness import StalenessRule
from fedoptima.methods.options import (
    AlphaMaxOption,
    AlphaOption,
    MaxDelayOption,
    RobustOption,
    StalenessAOption,
    StalenessBOption,
    StalenessOption,
)


def oafl(
    devices: int,
    *,
    max_delay: MaxDelayOption = None,
    staleness: StalenessOption = "polynomial",
    alpha: AlphaOption = 0.8,
    alpha_max: AlphaMaxOption = 1.0,
    staleness_a: StalenessAOption = 0.5,
    staleness_b: StalenessBOption = 4.0,
    robust: RobustOption = "none",
) -> Method:
    delay = 8 * devices if max_delay is None else max_delay
    limit = DelayLimit(delay, while_away=max_delay is None)
    rule = StalenessRule(staleness, alpha, staleness_a, staleness_b, alpha_max)
    return Method(
        name="oafl",
        program=ProgramSpec("gradient"),
        training=ServerTraining.PER_DEVICE,
        aggregation=partial(AsyncStaleness, limit, rule),
        scheduler=FifoScheduler,
        flow=OpenFlow,
        robust=robust,
        resolved={"max_delay": delay},
    )
