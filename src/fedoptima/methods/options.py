"""Options that several methods have, and what each means: one text for all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedoptima.core.aggregation import DelayLimit
from fedoptima.core.barrier import Barrier, OnLeave
from fedoptima.core.codecs import Codec
from fedoptima.core.errors import ConfigError
from fedoptima.core.reuse import LeastUsed, NoReuse, ReusePolicy, ReuseRule
from fedoptima.core.robust import Robust, RobustBarrier

ActivationCapOption = Annotated[
    int | None,
    Field(
        description="omega: the most activation batches that may wait for the server; unset: "
        "max(2 K, 32).",
        examples=[64],
    ),
]
CreditTimeoutOption = Annotated[
    float, Field(description="Seconds until an unused credit returns to the pool.")
]
LocalAuxiliaryOption = Annotated[
    str | int,
    Field(
        description="The device's auxiliary network: default, light (costs at most "
        "what the device side does), classifier, deep, a number of "
        "blocks, or your own as 'package.module:function'."
    ),
]
TrainEveryOption = Annotated[
    int,
    Field(
        ge=1,
        description="n: a device trains on at least one of n consecutive batches and on those that "
        "it cannot send; for the others it only sends the activations. For devices that are slower "
        "than their links.",
        examples=[4],
    ),
]
OverlapOption = Annotated[
    bool,
    Field(
        description="A device keeps training while its update is merged, and applies what it has "
        "learned in the meantime to the model that it receives."
    ),
]
StalenessOption = Annotated[
    Literal["inverse", "constant", "polynomial", "hinge"],
    Field(
        description="Weight of an update that is s versions behind. inverse: 1 / (s + 1); "
        "constant: 1; polynomial: (s + 1) ** -a; hinge: 1 while s <= b, then 1 / (a (s - b) + 1)."
    ),
]
AlphaOption = Annotated[
    float, Field(description="Share of the merged model that a fresh update gets.")
]
AlphaMaxOption = Annotated[float, Field(description="Largest share that an update gets.")]
AlphaDecayOption = Annotated[
    float,
    Field(
        description="Factor on alpha after each number of merges in `alpha_decay_at`; the authors' "
        "script has 0.5."
    ),
]
AlphaDecayAtOption = Annotated[
    tuple[int, ...],
    Field(description="Merges after which alpha falls.", examples=[(400, 800)]),
]
RhoOption = Annotated[
    float,
    Field(
        ge=0,
        description="Proximal term: rho / 2 times the squared distance to the model that the round "
        "began with is added to the loss.",
        examples=[0.005],
    ),
]
ResetOptimizerOption = Annotated[
    bool,
    Field(
        description="Each round begins with a fresh optimiser, as in the authors' script; false: "
        "as `reset_on_load` says."
    ),
]
StalenessAOption = Annotated[
    float | None,
    Field(
        description="a of polynomial and hinge; unset: as published, 0.5 and 10.", examples=[0.5]
    ),
]
StalenessBOption = Annotated[float, Field(description="b of hinge.")]
MaxDelayOption = Annotated[
    int | None,
    Field(
        description="D: an update more versions behind is refused; unset: 8 K, of what was merged "
        "during an absence.",
        examples=[64],
    ),
]
RobustOption = Annotated[
    Robust,
    Field(description="Limits what hostile devices can do to the model; refuse is recommended."),
]
RobustBarrierOption = Annotated[
    RobustBarrier,
    Field(description="Limits what hostile devices can do to the model; refuse is recommended."),
]
CodecOption = Annotated[
    Codec,
    Field(
        description="Number format of activations, sent and waiting on the server: float32, "
        "bfloat16 (half the bytes) or int8 (a quarter, with a scale per sample)."
    ),
]
GradientCodecOption = Annotated[
    Codec,
    Field(description="Number format of the server's gradients; values as for `codec`."),
]
UpdateCodecOption = Annotated[
    Codec,
    Field(
        description="Number format of devices' updates: float32, or the change of each weight in "
        "the round as bfloat16 or int8. Models to devices stay float32."
    ),
]
OnLeaveOption = Annotated[
    OnLeave,
    Field(
        description="When a device leaves during a round. keep: the round continues, and an update "
        "that was handed in counts (updates are summed as they arrive, in the memory of one); "
        "drop: it continues without that update; wait: it waits until the device is back."
    ),
]
ParticipationOption = Annotated[
    float,
    Field(
        description="Share of the devices that is drawn for each round, at least one device. The "
        "others wait."
    ),
]
BarrierTimeoutOption = Annotated[
    float | None,
    Field(
        description="Seconds to wait for devices that are connected but silent; unset: 30 "
        "predicted rounds, at least 300.",
        examples=[600.0],
    ),
]


class Reuse(BaseModel):
    """Activation reuse: a server with nothing else to do trains again on batches that it has
    trained on before ([decision 37](decisions/0037-activation-reuse.md)). Given, it is on."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    batches: int = Field(
        default=64, ge=1, description="How many of the last batches the server keeps for reuse."
    )
    uses: int = Field(
        default=4, ge=1, description="How often each is reused; the least used first."
    )
    max_age: int | None = Field(
        default=None,
        ge=0,
        description="Merges after which a batch is no longer reused; unset: no limit.",
        examples=[32],
    )
    on_leave: Literal["keep", "forget"] = Field(
        default="keep",
        description="When a device leaves, what it has sent is kept or forgotten (for privacy).",
    )


def _switched(value: object) -> object:
    if isinstance(value, bool):
        return Reuse() if value else None
    return value


ReuseOption = Annotated[
    Reuse | None,
    BeforeValidator(_switched),  # a sweep needs words for on and off
    Field(
        description="An idle server trains again on its last batches; true: all defaults; unset or "
        "false: off, as in the paper.",
        examples=[{"batches": 64, "uses": 4}],
    ),
]


def reuse_of(given: Reuse | None, *, local_loss: bool = True) -> ReuseRule | None:
    if given is None:
        return None
    if not local_loss:
        raise ConfigError(
            "method.reuse: devices that wait for the server's gradients need them once; leave it "
            "out, or give the devices an auxiliary network"
        )
    return ReuseRule(**Reuse.model_validate(given).model_dump())


def policy_of(rule: ReuseRule | None) -> Callable[[], ReusePolicy]:
    return NoReuse if rule is None else partial(LeastUsed, rule)


def barrier_of(
    on_leave: OnLeave, timeout: float | None, participation: float, robust: RobustBarrier
) -> Callable[[], Barrier]:
    """Robust merging compares all updates of a round, so there they cannot be added up before."""
    return partial(
        Barrier,
        on_leave=on_leave,
        timeout=timeout,
        participation=participation,
        folds=robust == "none",
    )


def activation_cap_of(given: int | None, devices: int) -> int:
    cap = max(2 * devices, 32) if given is None else given
    if cap < 1:
        raise ConfigError(
            f"method.activation_cap = {cap}: must be at least 1 "
            f"(at least the number of devices, {devices}, keeps the server busy)"
        )
    return cap


def delay_limit_of(given: int | None, devices: int) -> DelayLimit:
    if given is None:
        return DelayLimit(8 * devices, while_away=True)
    return DelayLimit(given)


def local_auxiliary_of(given: str | int) -> str | int:
    """Of a method whose devices learn from nothing else."""
    if given == "none":
        raise ConfigError(
            "method.auxiliary = 'none': its devices learn from their auxiliary networks alone; "
            "splitfed is the method whose devices wait for the server's gradients"
        )
    return given


def overlap_of(given: bool, auxiliary: str | int) -> bool:
    if given and auxiliary == "none":
        raise ConfigError(
            "method.overlap = true: without an auxiliary network a device waits for gradients of "
            "the model that it had, and cannot change it meanwhile; choose another method.auxiliary"
        )
    return given


def gradient_codec_of(given: Codec, auxiliary: str | int) -> Codec:
    if given != "float32" and auxiliary != "none":
        raise ConfigError(
            f"method.gradient_codec = {given!r}: with an auxiliary network no gradients are sent; "
            "leave it out, or choose method.auxiliary = 'none'"
        )
    return given


def train_every_of(given: int, auxiliary: str | int) -> int:
    if given > 1 and auxiliary == "none":
        raise ConfigError(
            f"method.train_every = {given}: without an auxiliary network a device learns from the "
            "gradients of what it sends, so it trains on every batch; choose another "
            "method.auxiliary"
        )
    return given
