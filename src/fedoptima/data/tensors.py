"""Conversions of the user's values: float64 becomes float32. The task converts labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.data.finite import rows_in_words, rows_not_finite
from fedoptima.models.activation import Inputs, map_tensors, tensors_of


def as_inputs(value: object, where: str) -> Inputs:
    """A tuple of arrays, or a dict of arrays by name, is several inputs of each sample."""
    if isinstance(value, Mapping):
        if not value or not all(isinstance(name, str) for name in value):
            raise ConfigError(
                f"{where}: inputs are a {type(value).__name__} with names "
                f"{list(value)!r:.60}; give a tensor for each argument of the model, by its name"
            )
        return {name: _one_input(part, f"{where}, {name}") for name, part in value.items()}
    if isinstance(value, tuple) and value and all(map(_is_array, value)):
        parts = enumerate(value, start=1)
        return tuple(_one_input(part, f"{where}, input {number}") for number, part in parts)
    return _one_input(value, where)


def as_sample(value: object, where: str) -> Inputs:
    """One input of a model, or several of one sample."""
    if isinstance(value, Mapping) and value:
        return {str(name): as_sample_part(part, where) for name, part in value.items()}
    if (
        isinstance(value, tuple)
        and value
        and all(isinstance(v, Tensor | np.ndarray) for v in value)
    ):
        return tuple(as_sample_part(part, where) for part in value)
    return as_sample_part(value, where)


def as_sample_part(value: object, where: str) -> Tensor:
    return narrowed(as_tensor(value, where))


def joined(parts: Sequence[Inputs], join: Callable[[list[Tensor]], Tensor]) -> Inputs:
    """Inputs of several samples or batches as one: ``join`` is torch.stack or torch.cat."""
    made = (join(list(tensors)) for tensors in zip(*map(tensors_of, parts), strict=True))
    return map_tensors(parts[0], lambda _: next(made))


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray) and value.ndim > 0


def _one_input(value: object, where: str) -> Tensor:
    inputs = as_tensor(value, f"{where}: inputs")
    if inputs.dim() == 0:
        raise ConfigError(f"{where}: inputs are a single number; the first dimension is the sample")
    return narrowed(inputs)


def as_labels(value: object, where: str) -> Tensor:
    labels = as_tensor(value, f"{where}: labels")
    bad = rows_not_finite(labels) if labels.dim() else []
    if bad:
        raise ConfigError(
            f"{where}: labels are NaN or infinite in {rows_in_words(bad)}; correct or leave out "
            "these samples"
        )
    return labels


def as_label(value: object, where: str) -> Tensor:
    """Of one sample: a number, or several for its positions or pixels."""
    label = as_tensor(value, where)
    if label.is_floating_point() and not label.isfinite().all():
        raise ConfigError(f"{where} is NaN or infinite; correct or leave out this sample")
    return label


def narrowed(inputs: Tensor) -> Tensor:
    return inputs.to(torch.float32) if inputs.dtype == torch.float64 else inputs


def as_tensor(value: object, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if not isinstance(value, np.ndarray | np.generic | int | float | list | tuple):
        raise ConfigError(
            f"{where} is {type(value).__name__}; turn it into a tensor or a numpy array first"
        )
    if isinstance(value, np.ndarray) and value.dtype.kind in "US":
        raise ConfigError(
            f"{where} are texts; give numbers: names of classes become 0, 1, ... with "
            "np.unique(names, return_inverse=True)[1]"
        )
    try:
        # A copy: a later write to the user's array must not change the data of a run.
        return torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} cannot become a tensor: {error}") from error
