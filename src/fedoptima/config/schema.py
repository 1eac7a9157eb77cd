"""The whole of a recipe. Unknown keys are errors; every default is here or with its method.

Every key says what it means: docs/recipe.md is made from it (``python -m tools.recipe_reference
--write``), and a test fails for a key without a description.
"""

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
from fedoptima.config.own_settings import OwnSettings
from fedoptima.config.split import SplitConfig
from fedoptima.config.training import TrainingConfig
from fedoptima.core.errors import ConfigError
from fedoptima.core.stopping import StopRule

MOST_THREADS = 1024  # a server's recipe sets them for its devices, too
_MOST_WORKERS = 1024  # each is a process: more would take any machine down


def _test_or_share(value: object) -> object:
    if value == "test" or (isinstance(value, int | float) and 0 < value < 1):
        return value
    raise ValueError(
        f"{value!r} is neither 'test' nor a share of the training data above 0 and below 1"
    )


def _number_or_auto(value: object) -> object:
    if value == "auto" or (type(value) is int and 1 <= value <= _MOST_WORKERS):
        return value
    raise ValueError(
        f"{value!r} is neither a number of processes from 1 to {_MOST_WORKERS} nor 'auto'"
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
    """A name, and beside it the options of what it names; they are checked when it is built."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str = Field(
        description="One of this package, or your own as 'package.module:function'.",
        examples=["vgg5"],
    )

    @property
    def options(self) -> dict[str, object]:
        return dict(self.model_extra or {})


class MethodConfig(Named):
    """Which method trains; its options stand beside the name."""

    name: str = Field(
        default="fedoptima", description="The method (`fedoptima methods` lists them)."
    )


def _as_table(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class TaskConfig(Named):
    """What is learned; its options stand beside the name ([tasks](tasks.md))."""

    name: str = Field(
        default="classification",
        description="classification, multi-label, regression, token-level or dense; or your own as "
        "'package.module:function', which returns a `fedoptima.Task`.",
        examples=["regression"],
    )


class PartitionConfig(Strict):
    """How the training data is divided among the devices."""

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
        description="column: its name. Samples with the same value stay on one device, the one of "
        "that name if it exists.",
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
    """What is trained on; options of a data set stand beside its name."""

    name: str = Field(
        description="A data set (`fedoptima datasets` lists them), or your own as "
        "'package.module:function'.",
        examples=["digits"],
    )
    directory: str | None = Field(
        default=None,
        description="Where data sets are; unset: FEDOPTIMA_DATA and the usual places.",
        examples=["/data"],
    )
    partition: PartitionConfig = Field(
        default=PartitionConfig(),
        description="How the training data is divided among the devices.",
        examples=[{"kind": "iid"}],
    )
    # The paper describes no validation set, so the default is its practice: the test set.
    validation: Annotated[Literal["test"] | float, BeforeValidator(_test_or_share)] = Field(
        default="test",
        description="What the model is evaluated on during the run: the test set, or a share of "
        "the training data that is held out.",
        examples=[0.1],
    )
    device_validation: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Share of each device's samples that is held out: every evaluation also "
        "measures the model on each device's own.",
        examples=[0.2],
    )
    augment: bool = Field(
        default=True,
        description="Flip and crop images as is usual for the data set; hide words of texts, "
        "as many as `hidden_words` says.",
    )
    cache: bool = Field(
        default=False,
        description="Items of a map-style dataset: true: loaded once and kept in memory; false: "
        "loaded whenever they are used.",
    )
    workers: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Processes that load such items; 0: the process that trains.",
    )


class DeployConfig(Strict):
    """How a run over the network begins and what it keeps (`fedoptima server`, `fedoptima run`)."""

    devices: int | None = Field(
        default=None,
        ge=1,
        description="How many devices to start with; unset: as many as the fleet has.",
        examples=[4],
    )
    patience: Positive = Field(
        default=60.0,
        description="Seconds after the first device has joined until the run starts with those "
        "present.",
    )
    checkpoint_seconds: Positive = Field(
        default=30.0, description="Seconds between two checkpoints."
    )
    checkpoint_merges: int | None = Field(
        default=None,
        ge=1,
        description="Merges between two checkpoints, if they come first.",
        examples=[100],
    )
    checkpoints_kept: int = Field(
        default=3, ge=1, description="How many checkpoints are kept; older ones are removed."
    )
    max_message_mb: Positive = Field(
        default=1024.0, description="Larger messages are refused before memory is allocated."
    )
    max_records_mb: Positive = Field(
        default=256.0, description="Limit on disk for each device's own records, in MB."
    )


class Recipe(Strict):
    """Everything that makes up a run; `load_recipe` reads one from a TOML file."""

    name: str = Field(
        default="run",
        min_length=1,
        description="Name of the runs; part of their folder's name.",
    )
    seed: int = Field(default=1, ge=0, description="Seed of every random choice.")
    device: str = Field(
        default="cpu",
        description="torch device for the computation: cpu, cuda, cuda:1.",
        examples=["cuda", "cuda:1"],
    )
    # Sums over several threads may round differently, so the number belongs to a run's identity.
    threads: int | None = Field(
        default=None,
        ge=1,
        le=MOST_THREADS,
        description="torch threads per job; unset: 1 in a simulation, torch's default over the "
        "network.",
        examples=[1],
    )
    # They change no bit of the result, so the number is not stored with a run.
    workers: Annotated[
        Annotated[int, Field(ge=1)] | Literal["auto"], BeforeValidator(_number_or_auto)
    ] = Field(
        default="auto",
        exclude=True,
        description="Processes for the tensor work of a simulation; auto: one per core where it "
        "pays. The result is the same, bit for bit.",
    )
    model: Named = Field(
        description="The model that is trained; its options are keys next to its name.",
        examples=[{"name": "vgg5"}],
    )
    data: DataConfig = Field(
        description="The data that it is trained on.", examples=[{"name": "digits"}]
    )
    task: Annotated[TaskConfig, BeforeValidator(_as_table)] = Field(
        default=TaskConfig(),
        description="What is learned: the task's name, or a table with its options.",
        examples=[{"name": "regression"}],
    )
    fleet: FleetConfig | None = Field(
        default=None,
        description="Server and devices; needed in simulation.",
        examples=[{"preset": "testbed_a"}],
    )
    method: MethodConfig = Field(
        default=MethodConfig(),
        description="How it is trained.",
        examples=[{"name": "splitfed"}],
    )
    methods: dict[str, OwnSettings] = Field(
        default={},
        description="Settings of single methods, by name.",
        examples=[{"pipar": {"micro_batches": 4}}],
    )
    training: TrainingConfig = Field(
        default=TrainingConfig(),
        description="Batches, rounds, optimisers, evaluation.",
        examples=[{"batch_size": 20}],
    )
    split: SplitConfig = Field(
        default=SplitConfig(), description="Where the model is cut.", examples=[{"at": 2}]
    )
    deploy: DeployConfig = Field(
        default=DeployConfig(), description="Over the network.", examples=[{"devices": 4}]
    )
    stop: Annotated[StopRule, DataclassTable] = Field(
        description="When the run is over.", examples=[{"epochs": 10}]
    )

    @model_validator(mode="after")
    def _schedule_has_a_budget(self) -> Recipe:
        if self.training.schedules_move and self.stop.only_accuracy:
            raise ValueError(
                "training.schedule follows the share of the budget that is spent, but there is "
                "none: add stop.epochs (or rounds, hours), or use a constant schedule"
            )
        return self
