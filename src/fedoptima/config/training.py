"""A recipe's ``[training]``: batches, rounds, optimisers, the learning rate's schedule."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fedoptima.config.fleet import Positive, Strict

Precision = Literal["float32", "tf32", "bf16"]


class OptimizerConfig(Strict):
    """How weights change with a gradient; devices and server each have their own."""

    name: Literal["sgd", "adam", "adamw"] = Field(default="sgd", description="The optimiser.")
    learning_rate: Positive = Field(default=0.01, description="Before the schedule's factor.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="sgd: momentum.")
    nesterov: bool = Field(default=False, description="sgd: Nesterov's momentum.")
    weight_decay: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Share of a weight that is taken off."
    )
    clip_norm: Positive | None = Field(
        default=None, description="Longest gradient; longer ones are shortened.", examples=[1.0]
    )
    reset_on_load: bool = Field(
        default=False,
        description="Forget momentum when a new global model is loaded; false: it stays with its "
        "owner.",
    )

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> OptimizerConfig:
        if self.nesterov and self.name == "sgd" and not self.momentum:
            raise ValueError(
                "nesterov = true needs momentum above 0; set momentum = 0.9, or nesterov = false"
            )
        return self


class ScheduleConfig(Strict):
    """The learning rate as a share of its setting, over the progress of the whole run."""

    kind: Literal["constant", "cosine", "linear"] = Field(
        default="constant", description="How it falls over the budget of `stop`."
    )
    warmup: float = Field(
        default=0.0, ge=0, lt=1, description="Share of the run in which the rate rises first."
    )
    floor: float = Field(
        default=0.0, ge=0, le=1, description="Share of the rate that is left at the end."
    )


class TrainingConfig(Strict):
    """Batches, rounds, optimisers and evaluation."""

    batch_size: int = Field(default=100, ge=1, description="Samples in a mini-batch.")
    iterations: int | None = Field(
        default=None,
        ge=1,
        description="H, mini-batches in a local round; unset: one local epoch. Without a barrier "
        "all rounds are as long as one over a mean share, where shares differ by a batch or more.",
        examples=[20],
    )
    device: OptimizerConfig = Field(
        default=OptimizerConfig(),
        description="The devices' optimiser.",
        examples=[{"learning_rate": 0.05}],
    )
    server: OptimizerConfig = Field(
        default=OptimizerConfig(),
        description="The server's optimiser.",
        examples=[{"learning_rate": 0.05}],
    )
    schedule: ScheduleConfig = Field(
        default=ScheduleConfig(),
        description="Of the learning rate.",
        examples=[{"kind": "cosine"}],
    )
    evaluate_every: Positive = Field(default=1.0, description="Epochs between evaluations.")
    evaluation_batch: int | None = Field(
        default=None,
        ge=1,
        description="Samples that are evaluated at a time; unset: as many as a bound on memory "
        "allows, for this model and kind of device.",
        examples=[500],
    )
    precision: Precision = Field(
        default="float32",
        description="Of products; weights and what is sent stay float32.",
    )
    on_divergence: Literal["drop", "end"] = Field(
        default="drop",
        description="When a device's loss, or what it sends, is not finite: it leaves the run, or "
        "the run ends.",
    )
