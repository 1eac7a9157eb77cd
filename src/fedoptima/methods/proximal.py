"""A term that pulls a device back to the model its round began with: FedAsync's rho, FedProx's mu.

No tensor library is named here: the tensors bring their own arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any


def proximal(
    loss: Any, weights: Mapping[str, Any], received: Mapping[str, Any], *, rho: float
) -> Any:
    """``loss + rho / 2 * ||weights - received||^2``"""
    distance = sum((weights[name] - received[name]).square().sum() for name in weights)
    return loss + rho / 2 * distance


def proximal_loss(rho: float) -> Callable[..., object] | None:
    """What a method's `local_loss` is; None where nothing is added."""
    return partial(proximal, rho=rho) if rho else None
