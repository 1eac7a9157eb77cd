"""What a block of a model costs, as plain numbers per sample (the paper's O_l and S_l)."""

from __future__ import annotations

from dataclasses import dataclass


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
class Profile:
    """The blocks of a whole model, in order."""

    blocks: tuple[BlockProfile, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(block.name for block in self.blocks)
