"""The Pre-processor's result as plain data: what is on the device, and what everything costs.

The server makes a plan once (`preprocess.plan`) and sends it to the devices, which build their side
from it; the simulator takes its costs from it; its JSON is in the trace.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fedoptima.core.codecs import PLAIN, Codecs

Objective = Literal["paper", "measured"]

_LEFT_OUT = (  # where empty
    *("by_formula", "forward_moved", "backward_moved", "saved_bytes"),
    *("entry_flops", "entry_moved"),
    *("cut_rows", "weight_rows", "update_bytes", "codecs", "cuts", "sample_seconds"),
)


@dataclass(frozen=True, slots=True)
class BlockProfile:
    """One block: work and traffic are per sample, parameters are the block's own."""

    name: str
    forward_flops: float  # O_l; two for a multiply-add
    backward_flops: float
    output_bytes: int  # S_l; everything that crosses the cut after this block, as it is sent
    gradient_bytes: int  # what would come back: a mask has no gradient
    parameters: int
    parameter_bytes: int  # all of its state_dict
    # Operations that could not be counted: their FLOPs are the elements that they write.
    by_formula: tuple[str, ...] = ()
    # Bytes that its operations read and write, without its own parameters, which are moved once for
    # a batch, however many samples that has. 0 where nobody pays for them.
    forward_moved: int = 0
    backward_moved: int = 0
    saved_bytes: int = 0  # kept from a forward pass to its backward pass, its input not counted
    # Tensors that a codec may code. At the cut after this block: the place of each among those that
    # cross it, and its numbers in a sample. Of its weights: numbers and rows, all together.
    cut_rows: tuple[tuple[int, int], ...] = ()
    weight_rows: tuple[int, int] | tuple[()] = ()
    update_bytes: int = 0  # of its part of a model update, if that is coded
    # Of a backward pass that begins a server's side: for the gradient of what devices send, which
    # is not computed where none of them is sent it. 0 where all are.
    entry_flops: float = 0.0
    entry_moved: int = 0

    @property
    def uploaded_bytes(self) -> int:
        """Of its part of a model update."""
        return self.update_bytes or self.parameter_bytes


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
class Cut:
    """One of the cuts that devices may have, where each has its own."""

    split: int
    flops: float  # of a device for a sample, as the objective counts
    auxiliary_profile: BlockProfile | None


@dataclass(frozen=True, slots=True)
class Plan:
    blocks: tuple[BlockProfile, ...]
    split: int  # how many blocks are on the device; with ``cuts``: on every device
    auxiliary: str | int
    auxiliary_profile: BlockProfile | None
    objective: Objective
    table: tuple[Candidate, ...]  # empty where nothing is split
    micro_batches: int = 1  # parts of a mini-batch that are in flight together
    codecs: Codecs = PLAIN  # the sizes of the blocks are those of what they make
    cuts: tuple[Cut, ...] = ()  # that devices may have; the server's side begins at the first
    sample_seconds: float = 0.0  # each has the latest in which it manages one; 0: its quickest

    def at(self, split: int) -> Plan:
        """The plan of the devices with this one of the cuts."""
        if not (self.cuts and split):
            return self
        extra = next(cut.auxiliary_profile for cut in self.cuts if cut.split == split)
        alone = replace(self, table=(), cuts=(), sample_seconds=0.0)
        return replace(alone, split=split, auxiliary_profile=extra)

    @property
    def device_blocks(self) -> tuple[BlockProfile, ...]:
        return self.blocks[: self.split]

    @property
    def server_blocks(self) -> tuple[BlockProfile, ...]:
        return self.blocks[self.split :]

    def server_flops(self, *, answered: bool) -> float:
        """A step of the server for each sample; ``answered``: devices are sent gradients."""
        blocks = self.server_blocks
        work = sum(block.forward_flops + block.backward_flops for block in blocks)
        return work if answered or not blocks else work - blocks[0].entry_flops

    @property
    def server_bytes(self) -> int:
        """Parameters and buffers behind the cut; 0 where nothing is split."""
        return sum(block.parameter_bytes for block in self.server_blocks)

    @property
    def kept_bytes(self) -> int:
        """What a server keeps beside its own side where devices have cuts of their own: the blocks
        that all of them hold, and an auxiliary network for each cut."""
        extra = [cut.auxiliary_profile for cut in self.cuts]
        return sum(block.parameter_bytes for block in (*self.device_blocks, *extra) if block)

    @property
    def by_formula(self) -> dict[str, tuple[str, ...]]:
        """Blocks whose work could not be counted as a whole, and the operations that could not."""
        extra = (self.auxiliary_profile,) if self.auxiliary_profile else ()
        return {
            block.name: block.by_formula for block in (*self.blocks, *extra) if block.by_formula
        }

    def round_seconds(
        self, *, flops_per_second: float, bytes_per_second: float, batches: int, batch_size: int
    ) -> float:
        """A round of one device, with a server that takes no time."""
        own = self.device_blocks + ((self.auxiliary_profile,) if self.auxiliary_profile else ())
        work = sum(block.forward_flops + block.backward_flops for block in own)
        moved = 0
        if self.server_blocks:
            moved = self.device_blocks[-1].output_bytes + self.device_blocks[-1].gradient_bytes
        batch = batch_size * (work / flops_per_second + moved / bytes_per_second)
        models = sum(block.parameter_bytes + block.uploaded_bytes for block in own)
        return batches * batch + models / bytes_per_second

    def to_json(self) -> str:
        return json.dumps(asdict(self, dict_factory=_without_what_is_empty))

    @staticmethod
    def from_json(text: str) -> Plan:
        plan = json.loads(text)
        extra = plan["auxiliary_profile"]
        return Plan(
            tuple(block_from_plain(block) for block in plan["blocks"]),
            plan["split"],
            plan["auxiliary"],
            block_from_plain(extra) if extra else None,
            plan["objective"],
            tuple(Candidate(**row) for row in plan["table"]),
            plan["micro_batches"],
            Codecs(**plan.get("codecs", {})),
            tuple(_cut_from_plain(cut) for cut in plan.get("cuts", ())),
            plan.get("sample_seconds", 0.0),
        )


def _cut_from_plain(stored: dict[str, Any]) -> Cut:
    extra = stored["auxiliary_profile"]
    return Cut(stored["split"], stored["flops"], block_from_plain(extra) if extra else None)


def block_to_plain(block: BlockProfile) -> dict[str, Any]:
    return asdict(block, dict_factory=_without_what_is_empty)


def _without_what_is_empty(items: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = {key: value for key, value in items if value or key not in _LEFT_OUT}
    return {} if plain == _PLAIN else plain


_PLAIN = asdict(PLAIN)


def block_from_plain(stored: dict[str, Any]) -> BlockProfile:
    """From what `block_to_plain` has made."""
    return BlockProfile(
        **{
            **stored,
            "by_formula": tuple(stored.get("by_formula", ())),
            "cut_rows": tuple((place, numbers) for place, numbers in stored.get("cut_rows", ())),
            "weight_rows": tuple(stored.get("weight_rows", ())),
        }
    )


def recorded_plan(text: str) -> Plan | None:
    """From a trace; None if it was written by another version, or without a Pre-processor."""
    try:
        return Plan.from_json(text)
    except (ValueError, TypeError, KeyError):
        return None
