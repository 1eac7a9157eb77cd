"""Where the maths runs, and whether that machine can do what a recipe asks for."""

from __future__ import annotations

import torch

from fedoptima.config.training import Precision
from fedoptima.core.errors import ConfigError

CPU = torch.device("cpu")
_FIRST_CAPABLE = (8, 0)  # compute capability: Ampere has TF32 and bfloat16


def compute_device(name: str, precision: Precision = "float32") -> torch.device:
    """Where a run computes; ConfigError if there is no such device, or not with this precision."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device = {name!r}: use 'cpu', 'cuda' or 'cuda:1'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        seen = torch.cuda.device_count() or "no"
        raise ConfigError(f"device = {name!r}: torch sees {seen} GPU here; use 'cpu'")
    check_precision(precision, device)
    return device


def check_precision(precision: Precision, compute: torch.device) -> None:
    """ConfigError if ``compute`` cannot multiply like this."""
    where = f"training.precision = {precision!r}"
    if precision == "float32" or (precision == "bf16" and compute.type == "cpu"):
        return
    if compute.type != "cuda":
        raise ConfigError(
            f"{where}: only NVIDIA GPUs have this format, and this machine computes on its "
            "CPU; use 'float32' or 'bf16', or device = 'cuda'"
        )
    if torch.cuda.get_device_capability(compute) < _FIRST_CAPABLE:
        name = torch.cuda.get_device_name(compute)
        raise ConfigError(
            f"{where}: {name} does not have this format, which NVIDIA GPUs have since Ampere "
            "(compute capability 8.0); use 'float32'"
        )
