"""CSE-FSL: local losses on the devices and one server side for all, but rounds end together."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from fedoptima.core.codecs import Codecs
from fedoptima.core.flow import CappedFlow
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.scheduler import FifoScheduler
from fedoptima.methods.options import (
    ActivationCapOption,
    BarrierTimeoutOption,
    CodecOption,
    CreditTimeoutOption,
    LocalAuxiliaryOption,
    OnLeaveOption,
    ParticipationOption,
    ReuseOption,
    RobustBarrierOption,
    TrainEveryOption,
    UpdateCodecOption,
    activation_cap_of,
    barrier_of,
    local_auxiliary_of,
    policy_of,
    reuse_of,
)


def cse_fsl(
    devices: int,
    *,
    activation_cap: ActivationCapOption = None,
    credit_timeout: CreditTimeoutOption = 60.0,
    auxiliary: LocalAuxiliaryOption = "default",
    train_every: TrainEveryOption = 1,
    on_leave: OnLeaveOption = "keep",
    barrier_timeout: BarrierTimeoutOption = None,
    participation: ParticipationOption = 1.0,
    codec: CodecOption = "float32",
    update_codec: UpdateCodecOption = "float32",
    reuse: ReuseOption = None,
    robust: RobustBarrierOption = "none",
) -> Method:
    """Not in the paper: what is left of FedOptima without its asynchronous aggregation."""
    cap = activation_cap_of(activation_cap, devices)
    again = reuse_of(reuse)
    return Method(
        name="cse_fsl",
        program=ProgramSpec("auxiliary", train_every=train_every),
        training=ServerTraining.SHARED,
        aggregation=barrier_of(on_leave, barrier_timeout, participation, robust),
        scheduler=FifoScheduler,
        flow=partial(CappedFlow, cap, timeout=credit_timeout, balanced=False),
        auxiliary=local_auxiliary_of(auxiliary),
        reuse=policy_of(again),
        robust=robust,
        codecs=Codecs(codec, updates=update_codec),
        resolved={"activation_cap": cap, "reuse": asdict(again) if again else None},
    )
