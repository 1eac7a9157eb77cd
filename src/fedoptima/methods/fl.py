"""FL (FedAvg): every device trains the whole model, then waits for all others."""

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
    OnLeaveOption,
    ParticipationOption,
    RobustBarrierOption,
    UpdateCodecOption,
)


def fl(
    devices: int,
    *,
    on_leave: OnLeaveOption = "drop",
    barrier_timeout: BarrierTimeoutOption = None,
    participation: ParticipationOption = 1.0,
    update_codec: UpdateCodecOption = "float32",
    robust: RobustBarrierOption = "none",
) -> Method:
    return Method(
        name="fl",
        program=ProgramSpec("full"),
        training=ServerTraining.NONE,
        aggregation=partial(
            Barrier, on_leave=on_leave, timeout=barrier_timeout, participation=participation
        ),
        scheduler=FifoScheduler,
        flow=OpenFlow,
        robust=robust,
        codecs=Codecs(updates=update_codec),
    )
