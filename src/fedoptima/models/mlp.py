"""Fully connected layers, for rows of numbers."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fedoptima.models.checks import at_least


def mlp(features: int, classes: int, *, hidden: int = 64, layers: int = 2) -> nn.Sequential:
    """Hidden layers of one width and a linear one behind them, for tables."""
    at_least(1, "mlp", features=features, classes=classes, hidden=hidden, layers=layers)
    blocks: list[tuple[str, nn.Module]] = [
        (
            f"layer{number + 1}",
            nn.Sequential(nn.Linear(hidden if number else features, hidden), nn.ReLU()),
        )
        for number in range(layers)
    ]
    return nn.Sequential(OrderedDict([*blocks, ("head", nn.Linear(hidden, classes))]))
