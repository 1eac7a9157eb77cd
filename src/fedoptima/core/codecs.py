"""In which form numbers are sent: their names and sizes. `engine.codecs` makes the forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Codec = Literal["float32", "bfloat16", "int8"]

SCALE_BYTES = 4  # int8: a float32 for each row of numbers, a sample of activations for instance


@dataclass(frozen=True, slots=True)
class Codecs:
    """What each kind of message is sent in. A model on its way to devices is always float32."""

    activations: Codec = "float32"
    gradients: Codec = "float32"
    updates: Codec = "float32"

    @property
    def at_the_cut(self) -> bool:
        """Is anything that crosses the cut coded?"""
        return self.activations != "float32" or self.gradients != "float32"


PLAIN = Codecs()


def coded_bytes(codec: Codec, numbers: int, rows: int) -> int:
    """Of so many numbers in so many rows."""
    if codec == "int8":
        return numbers + SCALE_BYTES * rows
    return numbers * (2 if codec == "bfloat16" else 4)


def bytes_saved(codec: Codec, numbers: int, rows: int) -> int:
    """Compared with float32."""
    return 4 * numbers - coded_bytes(codec, numbers, rows)
