"""FL (FedAvg): every device trains the whole model, then waits for all others."""

from __future__ import annotations

from fedoptima.core.codecs import Codecs
from fedoptima.core.flow import OpenFlow
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.scheduler import FifoScheduler
from fedoptima.methods.options import (
    BarrierTimeoutOption,
    OnLeaveOption,
    ParticipationOption,
    RobustBarrierOption,
    UpdateCodecOption,
    barrier_of,
)


def fl(
    devices: int,
    *,
    on_leave: OnLeaveOption = "keep",
    barrier_timeout: BarrierTimeoutOption = None,
    participation: ParticipationOption = 1.0,
    update_codec: UpdateCodecOption = "float32",
    robust: RobustBarrierOption = "none",
) -> Method:
    return Method(
        name="fl",
        program=ProgramSpec("full"),
        training=ServerTraining.NONE,
        aggregation=barrier_of(on_leave, barrier_timeout, participation, robust),
        scheduler=FifoScheduler,
        flow=OpenFlow,
        robust=robust,
        codecs=Codecs(updates=update_codec),
    )
