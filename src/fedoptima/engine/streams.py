"""CUDA streams without the look-ups of `torch.cuda.stream`.

Torch reads the environment and asks for the current device each time a device is not given by its
number: ten microseconds, which a simulated step paid several times.
"""

from __future__ import annotations

import torch


def current_stream(compute: torch.device) -> torch.cuda.Stream:
    index = compute.index if compute.index is not None else torch.cuda.current_device()
    return torch.cuda.current_stream(index)


class OnStream:
    """What the calling thread orders within this context is done on ``stream``."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before = torch.cuda.current_stream(self._stream.device_index)
        torch.cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_stream(self._before)
