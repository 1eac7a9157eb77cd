"""Numbers in the form in which they are sent (`core.codecs`), and back.

A coded tensor keeps its name. int8 has a scale for each row, the largest of its numbers divided by
127, in a tensor beside it. Rounding is to the nearest, ties to even: the same on every machine. A
row that holds NaN or infinity gets a scale that is not finite, so that it is not finite afterwards
either, and is found by its scale alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedoptima.core.codecs import PLAIN, Codec, Codecs
from fedoptima.core.plan import Plan
from fedoptima.engine.payloads import ACTIVATIONS, Tensors
from fedoptima.preprocess.profile import is_codable

LARGEST_CODE = 127
SCALE = ".scale"  # after the name of the tensor
_LEAST = torch.finfo(torch.float32).tiny  # smaller ones have too few digits to divide by


def encode(tensors: Mapping[str, Tensor], names: Collection[str], codec: Codec) -> Tensors:
    """``names``: those to be coded; the others are left as they are, and not copied."""
    if codec == "float32":
        return dict(tensors)
    sent: Tensors = {}
    for name, tensor in tensors.items():
        if name not in names:
            sent[name] = tensor
        elif codec == "bfloat16":
            sent[name] = tensor.detach().to(torch.bfloat16)
        else:
            sent[name], sent[name + SCALE] = _quantise(tensor.detach())
    return sent


def decode(tensors: Mapping[str, Tensor], names: Collection[str], codec: Codec) -> Tensors:
    """What `encode` was given, as far as its form can say it."""
    if codec == "float32":
        return dict(tensors)
    found: Tensors = {}
    scales = {name + SCALE for name in names} if codec == "int8" else set()
    for name, tensor in tensors.items():
        if name in scales:
            continue
        if name not in names:
            found[name] = tensor
        elif codec == "bfloat16":
            found[name] = tensor.to(torch.float32)
        else:
            found[name] = tensor.to(torch.float32) * _beside(tensors[name + SCALE], tensor)
    return found


def comparable(tensors: Mapping[str, Tensor], names: Collection[str], codec: Codec) -> Tensors:
    """The same tensors; each scale as the largest number of its row."""
    if codec != "int8":
        return dict(tensors)
    scales = {name + SCALE for name in names}
    return {name: t * LARGEST_CODE if name in scales else t for name, t in tensors.items()}


def _quantise(tensor: Tensor) -> tuple[Tensor, Tensor]:
    flat = tensor.flatten(1)
    largest = torch.maximum(flat.amax(1), -flat.amin(1))
    scale = largest * (1 / LARGEST_CODE)  # a product: a GPU divides by a number in its own way
    scale = scale * (scale >= _LEAST)  # NaN stays NaN
    # Of zeros the scale is 0; of what is not finite it is not: then no number is left to be coded.
    codes = (tensor / _beside(scale, tensor)).nan_to_num_(0.0, 0.0, 0.0)
    return codes.round_().to(torch.int8), scale


def _beside(scale: Tensor, tensor: Tensor) -> Tensor:
    return scale.view(-1, *(1,) * (tensor.dim() - 1))


@dataclass(frozen=True, slots=True)
class CutCodec:
    """How tensors that cross the plan's cut are sent, in both directions."""

    codecs: Codecs
    names: frozenset[str]

    @staticmethod
    def of(plan: Plan) -> CutCodec:
        rows = plan.device_blocks[-1].cut_rows
        return CutCodec(plan.codecs, frozenset(f"{ACTIVATIONS}{place}" for place, _ in rows))

    def encode(self, activations: Tensors) -> Tensors:
        return encode(activations, self.names, self.codecs.activations)

    def decode(self, batch: Tensors) -> Tensors:
        codec = self.codecs.activations
        return batch if codec == "float32" else decode(batch, self.names, codec)

    def comparable(self, batch: Tensors) -> Tensors:
        return comparable(batch, self.names, self.codecs.activations)

    def encode_gradients(self, gradients: Tensors) -> Tensors:
        return encode(gradients, self.names, self.codecs.gradients)

    def decode_gradients(self, gradients: Tensors) -> Tensors:
        return decode(gradients, self.names, self.codecs.gradients)


@dataclass(frozen=True, slots=True)
class UpdateCodec:
    """How a model update is sent: what is coded, as its change since the round began.

    A change is much smaller than a weight, and so is the error of its code.
    """

    codec: Codec
    names: frozenset[str]

    @staticmethod
    def of(codec: Codec, model: Mapping[str, Tensor], parameters: Collection[str]) -> UpdateCodec:
        if codec == "float32":
            return PLAIN_UPDATE
        return UpdateCodec(codec, frozenset(n for n in parameters if is_codable(model[n])))

    def encode(self, update: Tensors) -> Tensors:
        """``update``: changes of tensors that are coded."""
        return encode(update, self.names, self.codec) if self.names else update

    def decode(self, update: Tensors, base: Mapping[str, Tensor] | None) -> Tensors:
        """``base``: what the changes are of; None: they stay changes."""
        if not self.names:
            return update
        found = decode(update, self.names, self.codec)
        if base is None:
            return found
        return {n: base[n] + tensor if n in self.names else tensor for n, tensor in found.items()}

    def comparable(self, update: Tensors) -> Tensors:
        return comparable(update, self.names, self.codec) if self.names else update


PLAIN_UPDATE = UpdateCodec("float32", frozenset())
PLAIN_CUT = CutCodec(PLAIN, frozenset())
