"""SplitFed: the network is split, the server has a copy for each device; rounds end together."""

from __future__ import annotations

from fedoptima.core.codecs import Codecs
from fedoptima.core.flow import OpenFlow
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.scheduler import FifoScheduler
from fedoptima.methods.options import (
    BarrierTimeoutOption,
    CodecOption,
    GradientCodecOption,
    OnLeaveOption,
    ParticipationOption,
    RobustBarrierOption,
    UpdateCodecOption,
    barrier_of,
)


def splitfed(
    devices: int,
    *,
    on_leave: OnLeaveOption = "keep",
    barrier_timeout: BarrierTimeoutOption = None,
    participation: ParticipationOption = 1.0,
    codec: CodecOption = "float32",
    gradient_codec: GradientCodecOption = "float32",
    update_codec: UpdateCodecOption = "float32",
    robust: RobustBarrierOption = "none",
) -> Method:
    return Method(
        name="splitfed",
        program=ProgramSpec("gradient"),
        training=ServerTraining.PER_DEVICE,
        aggregation=barrier_of(on_leave, barrier_timeout, participation, robust),
        scheduler=FifoScheduler,
        flow=OpenFlow,
        robust=robust,
        codecs=Codecs(codec, gradient_codec, updates=update_codec),
    )
