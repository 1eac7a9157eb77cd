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


# What work costs besides its FLOPs, on the server and on a device.
MemoryBandwidth = Annotated[
    Positive | None,
    Field(
        description="Memory bandwidth in training, in GB/s: operations, optimiser steps and merges "
        "take bytes / bandwidth in addition to FLOPs / speed; unset: it is part of the sustained "
        "speed.",
        examples=[4.0],
    ),
]
Overhead = Annotated[
    float,
    Field(
        ge=0,
        allow_inf_nan=False,
        description="Fixed overhead of every job, in milliseconds.",
        examples=[5.0],
    ),
]
Serialization = Annotated[
    Positive | None,
    Field(
        description="Speed at which messages are packed and unpacked here, in GB/s, in addition to "
        "their transfer; unset: not charged.",
        examples=[0.5],
    ),
]


class ServerConfig(Strict):
    """The server's speed, on the virtual clock, and its own link."""

    gflops: Positive = Field(
        description="Sustained speed in training, in GFLOP/s.", examples=[2000.0]
    )
    mbps: Positive | None = Field(
        default=None,
        description="Bandwidth of the server's own link in each direction, in Mbit/s, which all "
        "devices share; unset: not limited.",
        examples=[1000.0],
    )
    seconds: dict[JobName, Positive] = Field(
        default={},
        description="Measured times of jobs; they replace what is computed from speeds.",
        examples=[{"server_step": 0.02}],
    )
    memory_gb_s: MemoryBandwidth = None
    overhead_ms: Overhead = 0.0
    serialization_gb_s: Serialization = None


class DeviceGroup(Strict):
    """``count`` identical devices: named ``name``-1, ``name``-2, ... or just ``name`` for one."""

    name: str = Field(
        min_length=1,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="Name of the devices, with a number if there are several.",
        examples=["pi4"],
    )
    count: int = Field(default=1, ge=1, description="How many there are.")
    gflops: Positive = Field(description="Sustained speed in training, in GFLOP/s.", examples=[5.0])
    mbps: Positive = Field(default=50.0, description="Bandwidth in each direction, in Mbit/s.")
    up_mbps: Positive | None = Field(
        default=None, description="Bandwidth to the server, if it differs.", examples=[10.0]
    )
    down_mbps: Positive | None = Field(
        default=None, description="Bandwidth from the server, if it differs.", examples=[100.0]
    )
    latency_ms: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Latency of a message in milliseconds, in addition to its transfer time.",
    )
    seconds: dict[JobName, Positive] = Field(
        default={},
        description="Measured times of jobs; they replace what is computed from speeds.",
        examples=[{"forward": 0.05, "auxiliary_step": 0.02}],
    )
    memory_gb_s: MemoryBandwidth = None
    overhead_ms: Overhead = 0.0
    serialization_gb_s: Serialization = None
    joins_at: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds of the run after which the devices join.",
    )


class ChurnConfig(Strict):
    """The paper's unstable environment (section 6.4)."""

    every: Positive = Field(default=600.0, description="Seconds between two changes.")
    leave_probability: float = Field(
        ge=0,
        lt=1,
        description="Probability that a device is away until the next change.",
        examples=[0.2],
    )
    mbps: tuple[Positive, Positive] = Field(
        description="Lowest and highest bandwidth that is drawn for a device, in Mbit/s.",
        examples=[(25.0, 75.0)],
    )

    @model_validator(mode="after")
    def _ordered(self) -> ChurnConfig:
        if self.mbps[0] > self.mbps[1]:
            raise ValueError("the slower bandwidth comes first")
        return self


class ChangeConfig(Strict):
    """Something that happens to a device at a given time."""

    at: float = Field(
        ge=0, allow_inf_nan=False, description="Seconds of the run.", examples=[120.0]
    )
    device: str = Field(description="The device's name.", examples=["pi4-2"])
    kind: Literal["leave", "return", "cut", "restore", "hang", "bandwidth"] = Field(
        description="What happens: it leaves and returns, its connection is cut and restored, its "
        "process hangs, or its bandwidth changes.",
        examples=["leave"],
    )
    mbps: Positive | None = Field(
        default=None, description="The new bandwidth, with kind = 'bandwidth'.", examples=[5.0]
    )

    @model_validator(mode="after")
    def _complete(self) -> ChangeConfig:
        if (self.kind == "bandwidth") != (self.mbps is not None):
            raise ValueError("mbps belongs to kind = 'bandwidth', and only to it")
        return self


class FleetConfig(Strict):
    """The server and its devices. A simulation needs it; real devices report their own speeds.

    Either ``preset``, or ``server`` and ``devices``.
    """

    preset: str | None = Field(
        default=None,
        description="A fleet of this package (`fedoptima fleets` lists them), or a TOML file.",
        examples=["testbed_a"],
    )
    server: ServerConfig | None = Field(
        default=None, description="The server.", examples=[{"gflops": 2000.0}]
    )
    devices: tuple[DeviceGroup, ...] = Field(
        default=(),
        description="Groups of identical devices.",
        examples=[({"name": "pi4", "count": 4, "gflops": 5.0},)],
    )
    scale: Positive = Field(
        default=1.0,
        description="Factor on all devices' speeds; server and links stay as they are.",
    )
    churn: ChurnConfig | None = Field(
        default=None,
        description="Devices that come and go at random.",
        examples=[{"leave_probability": 0.2, "mbps": (25.0, 75.0)}],
    )
    changes: tuple[ChangeConfig, ...] = Field(
        default=(),
        description="What happens to single devices, and when.",
        examples=[({"at": 120.0, "device": "pi4-2", "kind": "leave"},)],
    )

    @model_validator(mode="after")
    def _either(self) -> FleetConfig:
        if self.preset is None and (self.server is None or not self.devices):
            raise ValueError(
                "give a preset ('testbed_a', another of `fedoptima fleets`, or a file), "
                "or a server and at least one group of devices"
            )
        return self
