"""Conversions of the user's values: float64 becomes float32, class numbers become int64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.data.finite import rows_in_words, rows_not_finite


def as_inputs(value: object, where: str) -> Tensor:
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
    return _whole(labels, f"{where}: labels are")


def as_class_number(value: object, where: str) -> Tensor:
    label = as_tensor(value, where)
    if label.dim() != 0:
        raise ConfigError(f"{where} has shape {tuple(label.shape)}; give one integer class number")
    if label.is_floating_point() and not label.isfinite():
        raise ConfigError(f"{where} is {float(label)}; give an integer class number")
    return _whole(label, f"{where} is")


def _whole(labels: Tensor, what: str) -> Tensor:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ConfigError(f"{what} {labels.dtype}; give integer class numbers, 0 to classes - 1")
    return labels.to(torch.int64)


def narrowed(inputs: Tensor) -> Tensor:
    return inputs.to(torch.float32) if inputs.dtype == torch.float64 else inputs


def as_tensor(value: object, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if not isinstance(value, np.ndarray | np.generic | int | float | list | tuple):
        raise ConfigError(
            f"{where} is {type(value).__name__}; turn it into a tensor or a numpy array first"
        )
    try:
        # A copy: a later write to the user's array must not change the data of a run.
        return torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} cannot become a tensor: {error}") from error
