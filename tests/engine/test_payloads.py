"""Gradients of a loss, however its backward pass is begun."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedoptima.engine.payloads import propagate_loss


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_loss_is_propagated_as_torch_does_it(shape: tuple[int, ...]) -> None:
    found = []
    for begin in (propagate_loss, torch.Tensor.backward):
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        for _ in range(2):  # gradients add up
            begin(layer(torch.ones(4, 3)).square().mean().reshape(shape))  # type: ignore[no-untyped-call]
        found.append([parameter.grad for parameter in layer.parameters()])
    assert all(map(torch.equal, *found))
