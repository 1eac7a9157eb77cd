"""FedBuff: every device trains the whole model; changes are collected and applied Z at a time."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field

from fedoptima.core.aggregation import Buffered
from fedoptima.core.codecs import Codecs
from fedoptima.core.flow import OpenFlow
from fedoptima.core.jobs import ServerOptimizer
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.scheduler import FifoScheduler
from fedoptima.core.staleness import StalenessRule
from fedoptima.methods.options import (
    MaxDelayOption,
    RobustOption,
    StalenessAOption,
    StalenessBOption,
    StalenessOption,
    UpdateCodecOption,
    delay_limit_of,
)


def fedbuff(
    devices: int,
    *,
    buffer: Annotated[
        int | None,
        Field(
            description="Z: the number of updates that are applied together; unset: 10 as "
            "published, but never more than K.",
            examples=[4],
        ),
    ] = None,
    max_delay: MaxDelayOption = None,
    staleness: StalenessOption = "polynomial",
    staleness_a: StalenessAOption = None,
    staleness_b: StalenessBOption = 4.0,
    average_staleness: Annotated[
        float | None,
        Field(
            description="Staleness at which a change weighs 1, as in its authors' code; unset: "
            "(K - 1) / Z, the average of K devices; 0: the published rule, where only a fresh one "
            "weighs 1.",
            examples=[0.0],
        ),
    ] = None,
    server_learning_rate: Annotated[
        float, Field(description="Factor on the mean change that is applied.")
    ] = 1.0,
    server_momentum: Annotated[float, Field(description="Momentum of the applied changes.")] = 0.0,
    update_codec: UpdateCodecOption = "float32",
    robust: RobustOption = "none",
) -> Method:
    size = min(10, devices) if buffer is None else buffer
    limit = delay_limit_of(max_delay, devices)
    rule = StalenessRule(staleness, 1.0, staleness_a, staleness_b)
    # Each merge makes the updates of all devices but the one that completes the buffer one version
    # older, and there are Z updates to a merge.
    average = (devices - 1) / size if average_staleness is None else average_staleness
    optimizer = ServerOptimizer(server_learning_rate, server_momentum)
    return Method(
        name="fedbuff",
        program=ProgramSpec("full", delta=True),
        training=ServerTraining.NONE,
        aggregation=partial(
            Buffered, size, limit, rule=rule, average=average, server_optimizer=optimizer
        ),
        scheduler=FifoScheduler,
        flow=OpenFlow,
        robust=robust,
        codecs=Codecs(updates=update_codec),
        resolved={
            "buffer": size,
            "max_delay": limit.merges,
            "staleness_a": rule.slope,
            "average_staleness": average,
        },
    )
