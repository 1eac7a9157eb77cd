"""PiPar: SplitFed with several parts of a mini-batch in flight, so that transfers overlap work."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedoptima.core.codecs import Codecs
from fedoptima.core.errors import ConfigError
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


def pipar(
    devices: int,
    *,
    micro_batches: Annotated[
        int | None,
        Field(
            description="Parts of a mini-batch in flight together; unset: by its authors' rule, "
            "ceil((up + server + down) / min(forward, backward)) + 1, at most half a batch.",
            examples=[4],
        ),
    ] = None,
    own_split: Annotated[
        bool,
        Field(
            description="Cut the model where PiPar's own rule, together with the number of parts, "
            "makes a mini-batch shortest; false: as `[split]` says, like all methods."
        ),
    ] = False,
    on_leave: OnLeaveOption = "wait",  # the paper: a leaving device blocks training
    barrier_timeout: BarrierTimeoutOption = None,
    participation: ParticipationOption = 1.0,
    codec: CodecOption = "float32",
    gradient_codec: GradientCodecOption = "float32",
    update_codec: UpdateCodecOption = "float32",
    robust: RobustBarrierOption = "none",
) -> Method:
    if micro_batches is not None and micro_batches < 1:
        raise ConfigError(f"method.micro_batches = {micro_batches}: must be at least 1")
    return Method(
        name="pipar",
        program=ProgramSpec("gradient", micro_batches=micro_batches or 0),
        training=ServerTraining.PER_DEVICE,
        aggregation=barrier_of(on_leave, barrier_timeout, participation, robust),
        scheduler=FifoScheduler,
        flow=OpenFlow,
        own_split=own_split,
        robust=robust,
        codecs=Codecs(codec, gradient_codec, updates=update_codec),
    )
