"""How much one device may send at once, and how much may wait for it: from what the plan allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from fedoptima.core.messages import GlobalModel, GradientBatch, Message

_HEADROOM: Final = 64 << 10  # bytes of a message beyond what the plan allows
MOST_SMALL: Final = 4 << 20  # bytes of messages without tensors that wait for one device

MostBytes: TypeAlias = Callable[[type[Message]], int]  # of the tensors in a message


def message_limit(most_bytes: MostBytes, kind: type[Message]) -> int:
    """Twice what the plan allows, so that most that is wrong with one can be said exactly."""
    return 2 * most_bytes(kind) + _HEADROOM


def most_held(most_bytes: MostBytes) -> int:
    """A device that reads has at most one model and one mini-batch's gradients on their way."""
    return 2 * (most_bytes(GlobalModel) + most_bytes(GradientBatch)) + MOST_SMALL


def unread(held: int) -> str:
    return f"it does not read: {held:,} bytes wait for it"
