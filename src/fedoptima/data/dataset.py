"""What every other module knows about data: two splits of raw tensors and how a batch is prepared.

Raw tensors stay small (uint8 images, int32 token ids) and are moved to a device once; they become
float batches only when they are used. A split is never written to after it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.data.vocabulary import Vocabulary

Kind = Literal["image", "text", "custom"]
Prepare = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True, eq=False)
class Split:
    """Samples in a fixed order: ``inputs[i]`` belongs to ``labels[i]``."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Split:
        return Split(self.inputs[rows], self.labels[rows])

    def to(self, device: torch.device | str) -> Split:
        return Split(self.inputs.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class Dataset:
    name: str
    kind: Kind
    train: Split
    test: Split
    classes: int
    facts: Mapping[str, int]  # what a model's builder needs to know about the data
    prepare: Prepare  # raw batch -> what the model takes
    augment: Augment | None = None  # (raw batch, seed) -> raw batch; training only
    vocabulary: Vocabulary | None = None  # text: which word an id stands for

    def to(self, device: torch.device | str) -> Dataset:
        """The same data with its tensors on ``device``, so that no batch is copied there later."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def check(self) -> Dataset:
        """Returns itself if every label is valid; called once, where data enters the program."""
        for part, split in (("training", self.train), ("test", self.test)):
            where = f"data set {self.name!r}, {part} part"
            if len(split.inputs) != len(split.labels):
                raise ConfigError(
                    f"{where}: {len(split.inputs)} inputs but {len(split.labels)} labels; "
                    "every input needs exactly one label"
                )
            if split.labels.dtype != torch.int64 or split.labels.dim() != 1:
                raise ConfigError(
                    f"{where}: labels are {tuple(split.labels.shape)} {split.labels.dtype}; "
                    "give one integer class number for each sample"
                )
            if not len(split):
                raise ConfigError(f"{where}: is empty; give at least one sample")
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= self.classes:
                raise ConfigError(
                    f"{where}: labels run from {low} to {high}, but {self.classes} classes are "
                    f"numbered 0 to {self.classes - 1}; renumber the labels or set classes"
                )
        if self.train.inputs.shape[1:] != self.test.inputs.shape[1:]:
            raise ConfigError(
                f"data set {self.name!r}: training samples have shape "
                f"{tuple(self.train.inputs.shape[1:])}, test samples "
                f"{tuple(self.test.inputs.shape[1:])}; both must be the same"
            )
        return self


def stand_in(shape: Sequence[int], dtype: torch.dtype, per_class: Sequence[int]) -> Split:
    """Samples that take no memory: the numbers and shapes of real ones, for dry runs."""
    labels = torch.repeat_interleave(torch.arange(len(per_class)), torch.tensor(per_class))
    return Split(torch.ones((), dtype=dtype).expand(len(labels), *shape), labels)


def image_facts(inputs: Tensor, classes: int) -> dict[str, int]:
    return {"channels": inputs.shape[1], "image_size": inputs.shape[2], "classes": classes}


def text_facts(inputs: Tensor, vocabulary: int, classes: int) -> dict[str, int]:
    return {"vocabulary": vocabulary, "length": inputs.shape[1], "classes": classes}


# ---- from the raw batch that is stored to the batch that a model takes ---------------------------


@dataclass(frozen=True)
class Normalise:
    """uint8 pixels to float32 with mean 0 and deviation 1; both are given for pixels in 0..1."""

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    full_scale: int = 255

    def __call__(self, pixels: Tensor) -> Tensor:
        scale, shift = _scale_and_shift(self, pixels.device)
        return torch.addcmul(shift, pixels.to(torch.float32), scale)


@lru_cache(maxsize=64)
def _scale_and_shift(normalise: Normalise, device: torch.device) -> tuple[Tensor, Tensor]:
    # Kept per device: building them for every batch would be a copy to the GPU for every batch.
    mean = torch.tensor(normalise.mean, dtype=torch.float64).view(-1, 1, 1)
    deviation = torch.tensor(normalise.deviation, dtype=torch.float64).view(-1, 1, 1)
    scale = (1.0 / (deviation * normalise.full_scale)).to(device, torch.float32)
    return scale, (-mean / deviation).to(device, torch.float32)


def token_ids(tokens: Tensor) -> Tensor:
    """Ids are kept as int32 to halve their memory; embeddings are indexed by int64."""
    return tokens.to(torch.int64)


def as_given(inputs: Tensor) -> Tensor:
    return inputs
