"""The Pre-processor's result as plain data: what is on the device, and what everything costs.

The server makes a plan once (`preprocess.plan`) and sends it to the devices, which build their side
from it; the simulator takes its costs from it; its JSON is in the trace.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

Objective = Literal["paper", "measured"]


@dataclass(frozen=True, slots=True)
class BlockProfile:
    """One block: work and traffic are per sample, parameters are the block's own."""

    name: str
    forward_flops: float  # O_l; two for a multiply-add
    backward_flops: float
    output_bytes: int  # S_l; everything that crosses the cut after this block
    gradient_bytes: int  # what would come back: a mask has no gradient
    parameters: int
    parameter_bytes: int  # all of its state_dict: what a model update carries


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one split would mean for one batch on the device that is slowest with it."""

    split: int
    name: str  # the last block on the device
    device_flops: float
    activation_bytes: int
    train_seconds: float
    transfer_seconds: float
    bottleneck_seconds: float
    slowest: int  # index of the device that sets the bottleneck


@dataclass(frozen=True, slots=True)
class Plan:
    blocks: tuple[BlockProfile, ...]
    split: int  # how many blocks are on the device
    auxiliary: str | int
    auxiliary_profile: BlockProfile | None
    objective: Objective
    table: tuple[Candidate, ...]  # empty where nothing is split
    micro_batches: int = 1  # parts of a mini-batch that hide a round trip to the server

    @property
    def device_blocks(self) -> tuple[BlockProfile, ...]:
        return self.blocks[: self.split]

    @property
    def server_blocks(self) -> tuple[BlockProfile, ...]:
        return self.blocks[self.split :]

    @property
    def server_bytes(self) -> int:
        """Parameters and buffers behind the cut; 0 where nothing is split."""
        return sum(block.parameter_bytes for block in self.server_blocks)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Plan:
        plan = json.loads(text)
        extra = plan["auxiliary_profile"]
        return Plan(
            tuple(BlockProfile(**block) for block in plan["blocks"]),
            plan["split"],
            plan["auxiliary"],
            BlockProfile(**extra) if extra else None,
            plan["objective"],
            tuple(Candidate(**row) for row in plan["table"]),
            plan["micro_batches"],
        )


def recorded_plan(text: str) -> Plan | None:
    """From a trace; None if it was written by another version, or without a Pre-processor."""
    try:
        return Plan.from_json(text)
    except (ValueError, TypeError, KeyError):
        return None
