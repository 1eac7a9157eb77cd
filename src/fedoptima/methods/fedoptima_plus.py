"""FedOptima+: FedOptima in the form that the planner chooses for the fleet and the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from fedoptima.core.codecs import Codec
from fedoptima.core.method import Method
from fedoptima.methods.fedoptima import fedoptima
from fedoptima.methods.options import (
    ActivationCapOption,
    AlphaMaxOption,
    AlphaOption,
    CreditTimeoutOption,
    MaxDelayOption,
    OverlapOption,
    Reuse,
    RobustOption,
    StalenessAOption,
    StalenessBOption,
    StalenessOption,
    UpdateCodecOption,
)

NAME = "fedoptima_plus"
PLANNED = ("codec", "auxiliary", "train_every", "reuse")  # and split.at
LEAST_TRAINING = 0.25


def fedoptima_plus(
    devices: int,
    *,
    codec: Annotated[
        Codec | None,
        Field(description="As FedOptima's; unset: the planner chooses.", examples=["int8"]),
    ] = None,
    auxiliary: Annotated[
        str | int | None,
        Field(description="As FedOptima's; unset: the planner chooses.", examples=["light"]),
    ] = None,
    train_every: Annotated[
        int | None,
        Field(ge=1, description="As FedOptima's; unset: the planner chooses.", examples=[2]),
    ] = None,
    reuse: Annotated[
        Reuse | bool | None,
        Field(
            description="As FedOptima's; false: none; unset: the planner chooses.", examples=[False]
        ),
    ] = None,
    least_training: Annotated[
        float,
        Field(gt=0, le=1, description="Least share of its batches that a device trains on."),
    ] = LEAST_TRAINING,
    activation_cap: ActivationCapOption = None,
    credit_timeout: CreditTimeoutOption = 60.0,
    max_delay: MaxDelayOption = None,
    staleness: StalenessOption = "inverse",
    alpha: AlphaOption = 1.0,
    alpha_max: AlphaMaxOption = 1.0,
    staleness_a: StalenessAOption = None,
    staleness_b: StalenessBOption = 4.0,
    overlap: OverlapOption = False,
    update_codec: UpdateCodecOption = "float32",
    robust: RobustOption = "none",
) -> Method:
    """Not in the paper: what is not given is chosen by short dry runs before the run starts."""
    method = fedoptima(
        devices,
        activation_cap=activation_cap,
        credit_timeout=credit_timeout,
        max_delay=max_delay,
        staleness=staleness,
        alpha=alpha,
        alpha_max=alpha_max,
        staleness_a=staleness_a,
        staleness_b=staleness_b,
        auxiliary="default" if auxiliary is None else auxiliary,
        train_every=train_every or 1,
        codec=codec or "float32",
        reuse=Reuse() if reuse is True else reuse or None,
        overlap=overlap,
        update_codec=update_codec,
        robust=robust,
    )
    return replace(
        method, name=NAME, resolved={**method.resolved, "reuse": method.resolved["reuse"] or False}
    )
