"""PiPar's own choices: how many parts of a mini-batch are in flight, and where to cut the model.

Both are its authors' rules, for the device that needs most and the device that is slowest
(docs/decisions/0019). Pure arithmetic over profiles, like `preprocess.split`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedoptima.preprocess.split import DeviceSpeed, Profile


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """One mini-batch of one device with a server of its own, in seconds."""

    forward: float
    up: float
    server: float
    down: float
    backward: float


def batch_times(
    profile: Profile,
    split: int,
    device: DeviceSpeed,
    *,
    batch_size: int,
    server_flops_per_second: float | None,
) -> BatchTimes:
    """``server_flops_per_second``: None where it is not known: then its work takes no time."""
    own, others, cut = profile.blocks[:split], profile.blocks[split:], profile.blocks[split - 1]
    work = sum(block.forward_flops + block.backward_flops for block in others)
    return BatchTimes(
        forward=sum(b.forward_flops for b in own) * batch_size / device.flops_per_second,
        up=cut.output_bytes * batch_size / device.bytes_per_second,
        server=work * batch_size / server_flops_per_second if server_flops_per_second else 0.0,
        down=cut.gradient_bytes * batch_size / device.bytes_per_second,
        backward=sum(b.backward_flops for b in own) * batch_size / device.flops_per_second,
    )


def parts_for(times: Sequence[BatchTimes], batch_size: int) -> int:
    """``ceil((up + server + down) / min(forward, backward)) + 1``, at most half a batch."""
    most = max(1, batch_size // 2)

    def needed(of: BatchTimes) -> int:
        away, work = of.up + of.server + of.down, min(of.forward, of.backward)
        return most if away >= most * work else math.ceil(away / work) + 1

    return min(most, max(map(needed, times)))


def pipelined_seconds(times: BatchTimes, parts: int) -> float:
    """From the first forward pass to the last backward pass: all forward passes come first."""
    sent = served = received = done = 0.0
    gradients = []
    for part in range(1, parts + 1):
        sent = max(sent, part * times.forward / parts) + times.up / parts
        served = max(served, sent) + times.server / parts
        received = max(received, served) + times.down / parts
        gradients.append(received)
    done = times.forward
    for gradient in gradients:
        done = max(done, gradient) + times.backward / parts
    return done


def pipelined_split(
    profile: Profile,
    devices: Sequence[DeviceSpeed],
    *,
    batch_size: int,
    server_flops_per_second: float | None,
    parts: int = 0,
) -> int:
    """The split whose pipelined mini-batch is shortest on its slowest device, with as many parts
    as the rule gives for it, or ``parts``; of several the smallest."""

    def seconds(split: int) -> float:
        times = [
            batch_times(
                profile,
                split,
                device,
                batch_size=batch_size,
                server_flops_per_second=server_flops_per_second,
            )
            for device in devices
        ]
        count = parts or parts_for(times, batch_size)
        return max(pipelined_seconds(one, count) for one in times)

    return min(range(1, len(profile.blocks)), key=seconds)
