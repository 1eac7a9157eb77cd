"""What a model predicts for one sample. Without torch, which a plan does without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Predicts = Literal["sample", "position", "pixel"]


@dataclass(frozen=True, slots=True)
class Output:
    size: int  # classes or numbers, at each place if there are several
    places: tuple[int, ...] = ()  # (): one for the sample; (length,): a sequence; (height, width)

    @property
    def shape(self) -> tuple[int, ...]:
        """As torch's layers have it: (size,), (length, size) or (size, height, width)."""
        if len(self.places) == 1:
            return (*self.places, self.size)
        return (self.size, *self.places)

    def in_words(self, samples: int) -> str:
        """The whole shape, for messages."""
        return str((samples, *self.shape))
