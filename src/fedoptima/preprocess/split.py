"""Where to cut the model: l = argmin_l max_k max(t_train_k(l), t_transfer_k(l)) (section 3.2).

Pure arithmetic over profiles. A split l is the number of blocks on the device, 1 <= l < L: the
server keeps at least one block. The smallest l wins a tie. Every candidate is kept in the table, so
that a user can see the alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedoptima.core.errors import ConfigError
from fedoptima.core.plan import BlockProfile, Candidate, Objective

# They train the whole model on the device (a test compares this with the list of methods).
METHODS_WITHOUT_SPLIT = ("fl", "fedasync", "fedbuff")


@dataclass(frozen=True, slots=True)
class Profile:
    """The blocks of a whole model, in order."""

    blocks: tuple[BlockProfile, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(block.name for block in self.blocks)


@dataclass(frozen=True, slots=True)
class Entry:
    """The gradient of what enters a server's side, for each sample."""

    flops: float
    moved: int  # bytes


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    flops_per_second: float  # o_k
    bytes_per_second: float  # b_k


@dataclass(frozen=True, slots=True)
class SplitChoice:
    split: int
    table: tuple[Candidate, ...]


def choose_split(
    profile: Profile,
    devices: Sequence[DeviceSpeed],
    *,
    batch_size: int,
    objective: Objective = "paper",
    auxiliary: Mapping[int, BlockProfile] | None = None,
    train_every: int = 1,
    split: int | None = None,
) -> SplitChoice:
    """The split with the shortest bottleneck, or the user's ``split`` if the model has it.

    ``"paper"`` counts the forward FLOPs of the device side alone; ``"measured"`` counts its forward
    and backward, and those of the auxiliary network that ``auxiliary`` gives for each split. Of
    ``train_every`` batches one needs more than the forward pass.
    """
    count = _Counted(objective, train_every)
    table = _candidates(profile, devices, batch_size, count, auxiliary or {})
    if split is None:
        best = min(table, key=lambda candidate: (candidate.bottleneck_seconds, candidate.split))
        split = best.split
    elif split not in range(1, len(table) + 1):
        raise ConfigError(
            f"split.at = {split}: must be from 1 to {len(table)}, the number of blocks on the "
            f"device; the model's blocks are {', '.join(profile.names)}, "
            "and the server keeps at least one"
        )
    return SplitChoice(split, table)


def _candidates(
    profile: Profile,
    devices: Sequence[DeviceSpeed],
    batch_size: int,
    count: _Counted,
    auxiliary: Mapping[int, BlockProfile],
) -> tuple[Candidate, ...]:
    _check(profile, devices)
    table: list[Candidate] = []
    device_flops = 0.0
    for split, block in enumerate(profile.blocks[:-1], start=1):
        device_flops += count.block(block) * batch_size
        attached = auxiliary.get(split)
        extra = count.auxiliary(attached) * batch_size if attached is not None else 0.0
        activation_bytes = block.output_bytes * batch_size
        table.append(_slowest(split, block.name, device_flops + extra, activation_bytes, devices))
    return tuple(table)


@dataclass(frozen=True, slots=True)
class _Counted:
    """What counts as a device's work on a sample."""

    objective: Objective
    train_every: int

    def block(self, block: BlockProfile) -> float:
        if self.objective == "paper":
            return block.forward_flops
        return block.forward_flops + block.backward_flops / self.train_every

    def auxiliary(self, network: BlockProfile) -> float:
        if self.objective == "paper":
            return 0.0
        return (network.forward_flops + network.backward_flops) / self.train_every


def _slowest(
    split: int, name: str, flops: float, nbytes: int, devices: Sequence[DeviceSpeed]
) -> Candidate:
    """max_k max(train, transfer), the first device where several are equally slow."""
    times = [(flops / d.flops_per_second, nbytes / d.bytes_per_second) for d in devices]
    slowest = max(range(len(times)), key=lambda index: max(times[index]))
    train, transfer = times[slowest]
    return Candidate(split, name, flops, nbytes, train, transfer, max(train, transfer), slowest)


def _check(profile: Profile, devices: Sequence[DeviceSpeed]) -> None:
    if len(profile.blocks) < 2:
        raise ConfigError(
            f"the model has only {len(profile.blocks)} block ({', '.join(profile.names)}) and "
            "cannot be split; name a module after which to cut (split.at), write it as an "
            "nn.Sequential of at least two blocks, or use a method that does not split the model: "
            f"{', '.join(METHODS_WITHOUT_SPLIT)}"
        )
    for index, device in enumerate(devices):
        # `not >` also refuses NaN
        if not (device.flops_per_second > 0 and device.bytes_per_second > 0):
            raise ConfigError(
                f"device {index}: flops_per_second = {device.flops_per_second}, bytes_per_second = "
                f"{device.bytes_per_second}: both must be above 0"
            )
