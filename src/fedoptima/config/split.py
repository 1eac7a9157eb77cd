"""A recipe's ``[split]``: where the model is cut."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from fedoptima.config.fleet import Strict


def _blocks_or_module(value: object) -> object:
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value is None or count or (isinstance(value, str) and value):
        return value
    raise ValueError(
        f"{value!r} is neither a number of blocks on the device, at least 1, nor the name of the "
        "module after which to cut"
    )


class SplitConfig(Strict):
    """Where the model is cut; `fedoptima plan` shows the choice and the alternatives."""

    objective: Literal["paper", "measured"] = Field(
        default="paper",
        description="What the choice counts: the device side's forward pass, as in the paper, or "
        "everything that the device computes.",
    )
    at: Annotated[int | str | None, BeforeValidator(_blocks_or_module)] = Field(
        default=None,
        description="Blocks on the device, or the name of the module after which to cut "
        "('encoder.layer.2'); unset: by the objective.",
        examples=[2],
    )
    per_device: bool = Field(
        default=False,
        description="fedoptima: each device has the cut that is best for it, and another one when "
        "its link or speed has changed for good; false: one cut for all, as in the paper.",
    )
    batch_seconds: float | None = Field(
        default=None,
        ge=0,
        description="With per_device: each device takes as many blocks as it can compute and send "
        "for within this time per batch, which relieves the server; unset: the cut with which it "
        "is fastest, but fedoptima_plus chooses.",
        examples=[0.5],
    )

    @model_validator(mode="after")
    def _either(self) -> SplitConfig:
        if self.per_device and self.at is not None:
            raise ValueError(
                f"at = {self.at!r} is one cut for all devices, per_device = true one for each; "
                "leave either out"
            )
        if self.batch_seconds is not None and not self.per_device:
            raise ValueError(
                f"batch_seconds = {self.batch_seconds:g} is for cuts of single devices; leave it "
                "out, or add per_device = true"
            )
        return self
