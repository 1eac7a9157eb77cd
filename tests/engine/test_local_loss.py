"""What a method's hook may do with what it is given: read it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.engine.local_loss import Weights, changed_loss


def change(hook: Callable[..., Tensor]) -> Tensor:
    weights = {"a": torch.ones(2, requires_grad=True)}
    loss = weights["a"].sum()
    learner = cast(Any, SimpleNamespace(trained=lambda: weights))
    return changed_loss(hook, loss, learner, {"a": torch.zeros(2), "another": torch.zeros(1)})


def forgets_what_was_received(loss: Tensor, weights: Weights, received: Weights) -> Tensor:
    received["a"].add_(1)  # of FedBuff, which sends a round's changes, all would be wrong
    return loss


def steps_by_itself(loss: Tensor, weights: Weights, received: Weights) -> Tensor:
    with torch.no_grad():
        weights["a"].mul_(0.9)
    return loss


@pytest.mark.parametrize("hook", [forgets_what_was_received, steps_by_itself])
def test_a_hook_that_writes_into_what_it_is_given_is_refused(hook: Callable[..., Tensor]) -> None:
    with pytest.raises(ConfigError, match="has changed weights or received in place"):
        change(hook)


def test_a_hook_that_loses_the_gradient_is_refused() -> None:
    with pytest.raises(ConfigError, match="without a gradient"):
        change(lambda loss, weights, received: loss.detach())


def test_where_the_loss_is_the_servers_a_hook_may_add_nothing() -> None:
    zero = torch.zeros(())
    learner = cast(Any, SimpleNamespace(trained=dict))
    assert changed_loss(lambda loss, *_: loss, zero, learner, {}) is zero
