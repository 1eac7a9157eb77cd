"""A recipe's ``[training]``: batches, rounds, optimisers, the learning rate's schedule."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from fedoptima.config.fleet import Positive, Strict

Precision = Literal["float32", "tf32", "bf16"]
GIVEN = "custom"  # stands for a function that was given in Python


class ScheduleConfig(Strict):
    """The learning rate as a share of its setting, over the progress of the whole run."""

    kind: str = Field(
        default="constant",
        description="How it falls over the budget of `stop`: constant, cosine, linear or step; or "
        "your own as 'package.module:function', from the share that is spent to a factor.",
        examples=["cosine"],
    )
    warmup: float = Field(
        default=0.0, ge=0, lt=1, description="Share of the run in which the rate rises first."
    )
    floor: float = Field(
        default=0.0, ge=0, le=1, description="Share of the rate that remains at the end."
    )
    steps: tuple[float, ...] = Field(
        default=(0.5, 0.75),
        min_length=1,
        description="step: the shares of the budget at which the rate falls. With 200 epochs, 0.5 "
        "is after epoch 100.",
        examples=[[0.5, 0.75]],
    )
    factor: float = Field(
        default=0.1, gt=0, lt=1, description="step: what the rate is multiplied by at each of them."
    )

    @model_validator(mode="after")
    def _known(self) -> ScheduleConfig:
        own = ":" in self.kind or self.kind == GIVEN
        if not own and self.kind not in ("constant", "cosine", "linear", "step"):
            raise ValueError(
                f"kind = {self.kind!r}: must be 'constant', 'cosine', 'linear' or 'step', or your "
                "own as 'package.module:function'"
            )
        if not all(0 < share < 1 for share in self.steps):
            raise ValueError("steps: are shares of the budget, above 0 and below 1")
        if own and (self.warmup or self.floor):
            raise ValueError("warmup and floor do not belong to a schedule of your own")
        return self

    @property
    def moves(self) -> bool:
        return self.kind != "constant" or self.warmup > 0


class OptimizerConfig(Strict):
    """How weights change with a gradient; devices and server each have their own."""

    name: str = Field(
        default="sgd",
        min_length=1,
        description="sgd, adam, adamw; any other class of torch.optim, as 'RMSprop'; or your own "
        "as 'package.module:function', called with the parameters, lr and the options.",
        examples=["adamw"],
    )
    learning_rate: Positive = Field(
        default=0.01, description="Learning rate, before the schedule's factor."
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="sgd alone: momentum.")
    nesterov: bool = Field(default=False, description="sgd alone: Nesterov's momentum.")
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="Weight decay.")
    clip_norm: Positive | None = Field(
        default=None,
        description="Gradients with a larger norm are clipped to it; of a model that is cut, each "
        "side by its own.",
        examples=[1.0],
    )
    reset_on_load: bool = Field(
        default=False,
        description="Reset momentum when a new global model is loaded; false: it stays with its "
        "owner.",
    )

    options: dict[str, Any] = Field(
        default={},
        description="Further arguments of the optimiser, by name, such as the momentum of "
        "optimisers other than sgd.",
        examples=[{"betas": [0.9, 0.95]}],
    )
    schedule: ScheduleConfig | None = Field(
        default=None,
        description="Schedule of this learning rate; unset: `training.schedule`.",
        examples=[{"kind": "cosine"}],
    )

    @property
    def state_tensors(self) -> int:
        """Tensors of a weight's size that it keeps; one that we do not know is taken for Adam."""
        return int(self.momentum > 0) if self.name == "sgd" else 2

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> OptimizerConfig:
        if self.nesterov and self.name == "sgd" and not self.momentum:
            raise ValueError(
                "nesterov = true needs momentum above 0; set momentum = 0.9, or nesterov = false"
            )
        return self


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
        description="Learning-rate schedule.",
        examples=[{"kind": "cosine"}],
    )
    evaluate_every: Positive = Field(default=1.0, description="Epochs between evaluations.")
    evaluation_batch: int | None = Field(
        default=None,
        ge=1,
        description="Samples per evaluation batch; unset: as many as a memory bound allows, for "
        "this model and kind of device.",
        examples=[500],
    )
    precision: Precision = Field(
        default="float32",
        description="Number format of matrix products; weights and messages stay float32.",
    )
    on_divergence: Literal["drop", "end"] = Field(
        default="drop",
        description="When a device's loss, or what it sends, is not finite: it leaves the run, or "
        "the run ends.",
    )

    @property
    def schedules_move(self) -> bool:
        """Does any learning rate follow the share of the budget that is spent?"""
        all_of_them = (self.schedule, self.device.schedule, self.server.schedule)
        return any(schedule.moves for schedule in all_of_them if schedule)
