"""FedOptima: local losses on the devices, one server side for all, neither waits for the other."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from fedoptima.core.aggregation import AsyncStaleness
from fedoptima.core.codecs import Codecs
from fedoptima.core.flow import CappedFlow, OpenFlow
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.scheduler import CounterScheduler, FifoScheduler, InTurn
from fedoptima.core.staleness import StalenessRule
from fedoptima.methods.options import (
    ActivationCapOption,
    AlphaMaxOption,
    AlphaOption,
    CodecOption,
    CreditTimeoutOption,
    GradientCodecOption,
    MaxDelayOption,
    OverlapOption,
    ReuseOption,
    RobustOption,
    StalenessAOption,
    StalenessBOption,
    StalenessOption,
    TrainEveryOption,
    UpdateCodecOption,
    activation_cap_of,
    delay_limit_of,
    gradient_codec_of,
    overlap_of,
    policy_of,
    reuse_of,
    train_every_of,
)


def fedoptima(
    devices: int,
    *,
    activation_cap: ActivationCapOption = None,
    credit_timeout: CreditTimeoutOption = 60.0,
    max_delay: MaxDelayOption = None,
    staleness: StalenessOption = "inverse",
    alpha: AlphaOption = 1.0,
    alpha_max: AlphaMaxOption = 1.0,
    staleness_a: StalenessAOption = None,
    staleness_b: StalenessBOption = 4.0,
    scheduler: Annotated[
        Literal["counter", "fifo"],
        Field(
            description="Which batch the server takes next: the least used device's, or the "
            "first that came (an ablation of the paper)."
        ),
    ] = "counter",
    auxiliary: Annotated[
        str | int,
        Field(
            description="The device's auxiliary network: default, light (costs at most "
            "what the device side does), classifier, deep, a number of "
            "blocks, or your own as 'package.module:function'; none: gradients come from the "
            "server (an ablation of the paper)."
        ),
    ] = "default",
    train_every: TrainEveryOption = 1,
    overlap: OverlapOption = False,
    codec: CodecOption = "float32",
    gradient_codec: GradientCodecOption = "float32",
    update_codec: UpdateCodecOption = "float32",
    reuse: ReuseOption = None,
    robust: RobustOption = "none",
) -> Method:
    """`scheduler` and `auxiliary` are the paper's ablations (section 6.5); `reuse` is ours."""
    cap = activation_cap_of(activation_cap, devices)
    limit = delay_limit_of(max_delay, devices)
    rule = StalenessRule(staleness, alpha, staleness_a, staleness_b, alpha_max)
    balanced = scheduler == "counter"
    # Without an auxiliary network the device waits for the gradient of the one server side, and
    # that request and response bound the queue: there is nothing to cap.
    local_loss = auxiliary != "none"
    again = reuse_of(reuse, local_loss=local_loss)
    order = CounterScheduler if balanced else FifoScheduler
    return Method(
        name="fedoptima",
        program=ProgramSpec(
            "auxiliary" if local_loss else "gradient",
            train_every=train_every_of(train_every, auxiliary),
            overlap=overlap_of(overlap, auxiliary),
        ),
        training=ServerTraining.SHARED,
        aggregation=partial(AsyncStaleness, limit, rule),
        scheduler=partial(InTurn, order) if overlap else order,
        flow=partial(CappedFlow, cap, timeout=credit_timeout, balanced=balanced)
        if local_loss
        else OpenFlow,
        auxiliary=auxiliary,
        reuse=policy_of(again),
        robust=robust,
        codecs=Codecs(codec, gradient_codec_of(gradient_codec, auxiliary), updates=update_codec),
        resolved={
            "activation_cap": cap,
            "max_delay": limit.merges,
            "staleness_a": rule.slope,
            "reuse": asdict(again) if again else None,
        },
    )
