"""Auxiliary networks that a user's own function builds."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import call, samples_in, shapes_in_words
from fedoptima.preprocess.user_code import line_of, reason_of


def users_auxiliary(
    build: Callable[..., object], activation: object, classes: int, key: str
) -> nn.Module:
    """The network that a user's function makes, tried on the activation. ``key``: for errors."""
    try:
        network = build(activation, classes)
    except Exception as error:  # a user's code may raise anything
        raise ConfigError(
            f"{key}: calling it with an activation and {classes} classes failed "
            f"({reason_of(error)}){line_of(error)}"
        ) from error
    if not isinstance(network, nn.Module):
        raise ConfigError(f"{key}: returned {type(network).__name__}, not a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ConfigError(f"{key}: the network has no parameter that can be trained")
    try:
        with torch.no_grad():
            output = call(deepcopy(network).eval(), activation)
    except Exception as error:
        raise ConfigError(
            f"{key}: the network does not take what crosses the cut "
            f"({shapes_in_words(activation)}): {reason_of(error)}{line_of(error)}"
        ) from error
    if not isinstance(output, Tensor) or len(output) != samples_in(activation):
        raise ConfigError(
            f"{key}: the network must return one tensor of predictions, samples first; it "
            f"returned {shapes_in_words(output)} for {samples_in(activation)} samples"
        )
    return network
