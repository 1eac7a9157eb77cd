"""A few numbers computed on any device, to be read later without waiting for later work."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from fedoptima.engine.streams import current_stream


class HostCopy:
    """On a GPU they are copied behind the work queued so far, and reading waits for that only."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers
        self._copied: torch.cuda.Event | None = None
        if numbers.is_cuda:
            host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            stream = current_stream(numbers.device)
            self._numbers = host.copy_(numbers, non_blocking=True)
            self._copied = stream.record_event()
        self._read: list[list[float]] | None = None

    def read(self) -> list[list[float]]:
        """Rows of numbers."""
        if self._read is None:
            if self._copied is not None:
                self._copied.synchronize()
            self._read = cast(list[list[float]], self._numbers.tolist())
        return self._read
