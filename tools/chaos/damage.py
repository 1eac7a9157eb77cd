"""Ways in which a checkpoint on a disk may be damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_TENSORS, _STATE, _SUMS = "tensors.safetensors", "state.json", "SHA256SUMS"


def _zeroes(checkpoint: Path) -> None:
    """Half of the weights are zero: every file can be read."""
    data = bytearray((checkpoint / _TENSORS).read_bytes())
    half = len(data) // 2
    data[half:] = bytes(len(data) - half)
    (checkpoint / _TENSORS).write_bytes(data)


def _cut(name: str) -> Callable[[Path], None]:
    def cut(checkpoint: Path) -> None:
        data = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(data[: len(data) // 2])

    return cut


def _flipped(name: str) -> Callable[[Path], None]:
    def flip(checkpoint: Path) -> None:
        data = bytearray((checkpoint / name).read_bytes())
        data[len(data) // 3] ^= 0x10
        (checkpoint / name).write_bytes(data)

    return flip


def _missing(name: str) -> Callable[[Path], None]:
    return lambda checkpoint: (checkpoint / name).unlink()


WAYS = (
    _zeroes,
    *(way(name) for way in (_cut, _flipped, _missing) for name in (_TENSORS, _STATE, _SUMS)),
)


def damage(checkpoint: Path, choice: int) -> None:
    WAYS[choice % len(WAYS)](checkpoint)
