"""The whole of a recipe. Unknown keys are errors; every default is here or with its method."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from fedoptima.config.fleet import FleetConfig, Positive, Strict
from fedoptima.core.errors import ConfigError
from fedoptima.core.stopping import StopRule

Precision = Literal["float32", "tf32", "bf16"]


def _test_or_share(value: object) -> object:
    if value == "test" or (isinstance(value, int | float) and 0 < value < 1):
        return value
    raise ValueError(
        f"{value!r} is neither 'test' nor a share of the training data above 0 and below 1"
    )


class DataclassTable:
    """``Annotated[SomeDataclass, DataclassTable]``: a table is taken, and its values are strict."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        dataclass_schema: Any = handler.resolve_ref_schema(schema)
        dataclass_schema["strict"] = False  # otherwise only an instance would be taken
        return core_schema.no_info_wrap_validator_function(_checked, schema)


def _checked(value: object, validate: core_schema.ValidatorFunctionWrapHandler) -> object:
    try:
        return validate(value)
    except ConfigError as error:  # the dataclass's own check: pydantic collects value errors only
        raise ValueError(str(error)) from error


class Named(BaseModel):
    """A name and the options of what it names; those are checked where it is built."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str

    @property
    def options(self) -> dict[str, object]:
        return dict(self.model_extra or {})


class MethodConfig(Named):
    name: str = "fedoptima"


class PartitionConfig(Strict):
    """How the training data are divided among the devices."""

    kind: Literal["dirichlet", "iid", "label", "quantity", "column", "file"] = Field(
        default="dirichlet",
        description="dirichlet: each device has its own mix of classes; iid: all have the same; "
        "label: a few labels for each; quantity: unequal amounts; column: by a column of the data, "
        "such as who made a sample; file: as a file says.",
    )
    alpha: Positive = Field(
        default=0.5, description="dirichlet: the smaller, the more the mixes differ."
    )
    labels: int | None = Field(
        default=None, ge=1, description="label: how many labels each device holds.", examples=[2]
    )
    power: Positive | None = Field(
        default=None,
        description="quantity: the device of rank r holds an amount in proportion to r ^ -power.",
        examples=[1.5],
    )
    shares: tuple[Positive, ...] | None = Field(
        default=None,
        min_length=1,
        description="quantity: amounts in proportion to these, in the order of the fleet.",
        examples=[[4, 2, 1, 1]],
    )
    column: str | None = Field(
        default=None,
        description="column: its name. Samples with the same value stay on one device: on the "
        "one of that name where there is one.",
        examples=["writer"],
    )
    file: str | None = Field(
        default=None,
        description='file: JSON, {"device": [row, ...]}.',
        examples=["partition.json"],
    )

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> PartitionConfig:
        keys = {"labels": "label", "power": "quantity", "shares": "quantity",
                "column": "column", "file": "file"}  # fmt: skip
        given = [key for key in keys if getattr(self, key) is not None]
        for key in given:
            if keys[key] != self.kind:
                raise ValueError(f"{key} belongs to kind = {keys[key]!r}, not to {self.kind!r}")
        if len(given) > 1:
            raise ValueError("give either power or shares, not both")
        needed = [key for key, kind in keys.items() if kind == self.kind]
        if needed and not given:
            raise ValueError(f"kind = {self.kind!r} needs {' or '.join(needed)}")
        return self


class DataConfig(Named):
    directory: str | None = None
    partition: PartitionConfig = PartitionConfig()
    # The paper describes no validation set, so the default is its practice: the test set.
    validation: Annotated[Literal["test"] | float, BeforeValidator(_test_or_share)] = "test"
    augment: bool = True
    # Items of a map-style dataset: drawn once and kept, or drawn whenever they are used.
    cache: bool = False
    workers: int = Field(default=0, ge=0, le=64)  # processes that draw them; 0: the training one


class OptimizerConfig(Strict):
    name: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: Positive = 0.01
    momentum: float = Field(default=0.9, ge=0, lt=1)  # sgd
    nesterov: bool = False  # sgd
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    clip_norm: Positive | None = None
    reset_on_load: bool = False  # default: momentum stays with its owner across a new model

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> OptimizerConfig:
        if self.nesterov and self.name == "sgd" and not self.momentum:
            raise ValueError(
                "nesterov = true needs momentum above 0; set momentum = 0.9, or nesterov = false"
            )
        return self


class ScheduleConfig(Strict):
    """The learning rate as a share of its setting, over the progress of the whole run."""

    kind: Literal["constant", "cosine", "linear"] = "constant"
    warmup: float = Field(default=0.0, ge=0, lt=1)  # share of the run in which the rate rises
    floor: float = Field(default=0.0, ge=0, le=1)  # share of the rate that is left at the end


class TrainingConfig(Strict):
    batch_size: int = Field(default=100, ge=1)
    # H; None: one local epoch per round; without a barrier all rounds are as long as one over a
    # mean share, where shares differ by a batch or more.
    iterations: int | None = Field(default=None, ge=1)
    device: OptimizerConfig = OptimizerConfig()
    server: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    evaluate_every: Positive = 1.0  # epochs
    # None: as many samples as a bound on memory allows, for this model and kind of device.
    evaluation_batch: int | None = Field(default=None, ge=1)
    # Of products (engine/precision.py); weights and what is sent stay float32.
    precision: Precision = "float32"
    # When a device's loss, or what it sends, is not finite: it leaves the run, or the run ends.
    on_divergence: Literal["drop", "end"] = "drop"


class SplitConfig(Strict):
    objective: Literal["paper", "measured"] = "paper"
    at: int | None = Field(default=None, ge=1)  # blocks on the device; None: by the objective


class DeployConfig(Strict):
    """How a run over the network begins and what it keeps (`fedoptima server`, `fedoptima run`)."""

    devices: int | None = Field(default=None, ge=1)  # to begin with; None: as many as the fleet has
    patience: Positive = 60.0  # seconds after the first device: then begin with those present
    checkpoint_seconds: Positive = 30.0
    checkpoint_merges: int | None = Field(default=None, ge=1)  # whichever comes first
    checkpoints_kept: int = Field(default=3, ge=1)
    max_message_mb: Positive = 1024.0  # larger messages are refused before memory is allocated
    max_records_mb: Positive = 256.0  # on disk, of each device's own records; no more are kept


class Recipe(Strict):
    """Everything that makes up a run; `load_recipe` reads one from a TOML file."""

    name: str = Field(default="run", min_length=1)
    seed: int = Field(default=1, ge=0)
    device: str = "cpu"  # where the maths runs: "cpu", "cuda", "cuda:1"
    # Sums over several threads may round differently, so the number belongs to a run's identity.
    # None: 1 in a simulation; over the network as many as torch takes.
    threads: int | None = Field(default=None, ge=1)  # of torch, in a job
    # Processes that do the tensor work of a simulation. They change no bit of the result, so the
    # number does not belong to a run's identity and is not stored with it.
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(default="auto", exclude=True)
    model: Named
    data: DataConfig
    fleet: FleetConfig | None = None  # needed in simulation; real devices report their own speeds
    method: MethodConfig = MethodConfig()
    training: TrainingConfig = TrainingConfig()
    split: SplitConfig = SplitConfig()
    deploy: DeployConfig = DeployConfig()
    stop: Annotated[StopRule, DataclassTable]

    @model_validator(mode="after")
    def _schedule_has_a_budget(self) -> Recipe:
        schedule, stop = self.training.schedule, self.stop
        moves = schedule.kind != "constant" or schedule.warmup > 0
        if moves and stop.only_accuracy:
            raise ValueError(
                "training.schedule follows the share of the budget that is spent, but there is "
                "none: add stop.epochs (or rounds, hours), or use a constant schedule"
            )
        return self
