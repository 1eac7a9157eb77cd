"""SplitFed: the network is split, the server has a copy for each device; rounds end together."""

from __future__ import annotations

from functools import partial

from fedoptima.core.barrier import Barrier
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
)


def splitfed(
    devices: int,
    *,
    on_leave: OnLeaveOption = "drop",
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
        aggregation=partial(
            Barrier, on_leave=on_leave, timeout=barrier_timeout, participation=participation
        ),
        scheduler=FifoScheduler,
        flow=OpenFlow,
        robust=robust,
        codecs=Codecs(codec, gradient_codec, updates=update_codec),
    )
