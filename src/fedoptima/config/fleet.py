"""A fleet as the user writes it: the server, groups of identical devices, and faults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
JobName = Literal[
    "forward",
    "auxiliary_step",
    "backward",
    "full_step",
    "load_model",
    "export_model",
    "server_step",
    "merge",
]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ServerConfig(Strict):
    gflops: Positive  # sustained speed in training, GFLOP/s
    seconds: dict[JobName, Positive] = {}  # measured times of jobs; they replace FLOPs / speed


class DeviceGroup(Strict):
    """``count`` identical devices: named ``name``-1, ``name``-2, ... or just ``name`` for one."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    count: int = Field(default=1, ge=1)
    gflops: Positive
    mbps: Positive = 50.0  # each direction
    up_mbps: Positive | None = None
    down_mbps: Positive | None = None
    latency_ms: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    seconds: dict[JobName, Positive] = {}
    joins_at: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # seconds


class ChurnConfig(Strict):
    """The paper's unstable environment (section 6.4)."""

    every: Positive = 600.0  # seconds
    leave_probability: float = Field(ge=0, lt=1)
    mbps: tuple[Positive, Positive]

    @model_validator(mode="after")
    def _ordered(self) -> ChurnConfig:
        if self.mbps[0] > self.mbps[1]:
            raise ValueError("the slower bandwidth comes first")
        return self


class ChangeConfig(Strict):
    at: float = Field(ge=0, allow_inf_nan=False)
    device: str
    kind: Literal["leave", "return", "cut", "restore", "hang", "bandwidth"]
    mbps: Positive | None = None

    @model_validator(mode="after")
    def _complete(self) -> ChangeConfig:
        if (self.kind == "bandwidth") != (self.mbps is not None):
            raise ValueError("mbps belongs to kind = 'bandwidth', and only to it")
        return self


class FleetConfig(Strict):
    preset: str | None = None  # a fleet of this package, or a TOML file
    server: ServerConfig | None = None
    devices: tuple[DeviceGroup, ...] = ()
    scale: Positive = 1.0  # of all devices' speeds; the server and the links stay as they are
    churn: ChurnConfig | None = None
    changes: tuple[ChangeConfig, ...] = ()

    @model_validator(mode="after")
    def _either(self) -> FleetConfig:
        if self.preset is None and (self.server is None or not self.devices):
            raise ValueError(
                "give a preset ('testbed_a', 'testbed_b', 'uniform', or a file), "
                "or a server and at least one group of devices"
            )
        return self
