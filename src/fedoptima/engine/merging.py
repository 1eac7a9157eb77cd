"""What a merge job sums up: the updates that were handed in, and the copies on the server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from fedoptima.core.jobs import BasedMerge, Merge, Part, RobustMerge
from fedoptima.core.types import NodeId
from fedoptima.engine.codecs import UpdateCodec
from fedoptima.engine.flat import in_one_piece
from fedoptima.engine.gpu_upload import arrived
from fedoptima.engine.learner import Learner
from fedoptima.engine.payloads import Tensors
from fedoptima.engine.robust import Update
from fedoptima.engine.robustness import Parts, Robustness


def handed_in(
    job: Merge, model: Mapping[str, Tensor], compute: torch.device, codec: UpdateCodec
) -> list[Update]:
    """The devices' side; ``model``: what an update is compared with if its base is not known."""
    bases = job.bases if isinstance(job, BasedMerge) else (None,) * len(job.parts)
    delta = job.server_optimizer is not None
    updates = []
    for part, payload in zip(job.parts, bases, strict=True):
        base = model if payload is None else arrived(payload, compute)
        tensors = decoded(part, None if delta else base, compute, codec)
        updates.append(Update(part.device, part.weight, tensors, base, delta=delta))
    return updates


def decoded(
    part: Part, base: Mapping[str, Tensor] | None, compute: torch.device, codec: UpdateCodec
) -> Tensors:
    """An update; ``base``: what it is the change of, if it is one."""
    tensors = codec.decode(arrived(part.data, compute), base)
    if codec.names and compute.type == "cpu":
        tensors = in_one_piece(tensors)  # as the model is
    return tensors


def of_copies(
    job: Merge, shared: Mapping[str, Tensor], copies: Mapping[NodeId, Learner]
) -> list[Update]:
    """The server's side, where each device has a copy of it."""
    return [
        Update(part.device, part.weight, copies[part.device].tensors(), shared)
        for part in job.parts
    ]


def choose(
    job: Merge, sides: Sequence[Sequence[Update]], left_out: Collection[int], robust: Robustness
) -> tuple[dict[int, str], list[Parts]]:
    """The parts that robust merging refuses, by number, and what is summed up on each side."""
    numbers = [number for number in range(len(job.parts)) if number not in left_out]
    sound = [[side[number] for number in numbers] for side in sides]
    refused: dict[int, str] = {}
    if isinstance(job, RobustMerge) and numbers:
        found, parts = robust.select(sound)
        refused = {numbers[place]: why for place, why in found.items()}
    else:
        parts = [[(update.weight, update.tensors) for update in side] for side in sound]
    if not job.keep and (refused or left_out):  # a barrier's weights add up to 1, whoever is in it
        parts = [_adding_up(side) for side in parts]
    return refused, parts


def _adding_up(parts: Parts) -> Parts:
    total = sum(weight for weight, _ in parts)
    return [(weight / total, tensors) for weight, tensors in parts]


def is_finite(tensors: Mapping[str, Tensor], except_for: Collection[str]) -> Tensor:
    """Are all floating-point tensors, but for those that are meant to hold infinity?"""
    floats = [
        tensor.detach()
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and name not in except_for
    ]
    if not floats:
        return torch.tensor(True)
    return torch.isfinite(torch.stack(torch._foreach_norm(floats))).all()


def where(chosen: Tensor, these: Tensors, others: Mapping[str, Tensor]) -> Tensors:
    """``these`` if ``chosen``, else ``others``; a GPU is not waited for."""
    if not chosen.is_cuda:
        return these if chosen else dict(others)
    return {name: torch.where(chosen, tensor, others[name]) for name, tensor in these.items()}
