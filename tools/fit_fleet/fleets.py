"""A testbed's fleet with other speeds: as a description, and as the file of a preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedoptima.config.fleet import FleetConfig
from fedoptima.config.load import read_toml, validate
from fedoptima.sim.fleet import presets

DEVICES, SERVER = "device speed", "server speed"  # factors on the guessed ones
Parameters = Mapping[str, float]

# What the guessed fleets leave out and nothing in the paper determines: estimates, by group. The
# factors multiply them as well, but for the server's link. Memory of Testbed B as in data sheets.
_PI3 = {"memory_gb_s": 2.0, "overhead_ms": 10.0, "serialization_gb_s": 0.1}
_PI4 = {"memory_gb_s": 4.0, "overhead_ms": 5.0, "serialization_gb_s": 0.2}
_NANO = {"memory_gb_s": 25.6, "overhead_ms": 5.0, "serialization_gb_s": 0.2}
_LAPTOP = {"memory_gb_s": 30.0, "overhead_ms": 1.0, "serialization_gb_s": 1.0, "mbps": 1000.0}
_A6000 = {"memory_gb_s": 768.0, "overhead_ms": 0.5, "serialization_gb_s": 2.0, "mbps": 10_000.0}
TERMS: dict[str, dict[str, dict[str, float]]] = {
    "testbed_a": {
        "server": _LAPTOP,
        "pi3b-600MHz": _PI3,
        "pi3b-1200MHz": _PI3,
        "pi4b-1200MHz": _PI4,
        "pi4b-1800MHz": _PI4,
    },
    "testbed_b": {
        "server": _A6000,
        "nano-240MHz": _NANO,
        "nano-320MHz": _NANO,
        "nano-640MHz": _NANO,
        "nano-921MHz": _NANO,
    },
}
_FASTER = ("gflops", "memory_gb_s", "serialization_gb_s")
_SHORTER = ("overhead_ms",)


def guessed(testbed: str) -> FleetConfig:
    return FleetConfig(preset=testbed)


def fitted(testbed: str, parameters: Parameters) -> FleetConfig:
    return validate(FleetConfig, table(testbed, parameters), f"{testbed}, fitted")


def table(testbed: str, parameters: Parameters) -> dict[str, Any]:
    """As the file of the preset has it, with three digits."""
    guess, terms = read_toml(presets()[testbed]), TERMS[testbed]
    server = _scaled({**guess["server"], **terms["server"]}, parameters[SERVER])
    devices = [
        _scaled({**group, **terms[group["name"]]}, parameters[DEVICES])
        for group in guess["devices"]
    ]
    return {"server": server, "devices": devices}


def _scaled(node: Mapping[str, Any], speed: float) -> dict[str, Any]:
    faster = {key: _rounded(node[key] * speed) for key in _FASTER if key in node}
    shorter = {key: _rounded(node[key] / speed) for key in _SHORTER if key in node}
    return {**node, **faster, **shorter}


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def as_toml(fleet: Mapping[str, Any], comment: str) -> str:
    lines = [*(f"# {line}".rstrip() for line in comment.splitlines()), "", "[server]"]
    lines += [_line(*pair) for pair in fleet["server"].items()]
    for group in fleet["devices"]:
        lines += ["", "[[devices]]", *(_line(*pair) for pair in group.items())]
    return "\n".join(lines) + "\n"


def _line(key: str, value: object) -> str:
    return f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value:g}"
