"""A simulation between two events, on disk: go on from it and nothing that follows is different.

A checkpoint is a folder with one JSON (machines, event heap, links, engines' bookkeeping) and one
safetensors file (payloads in flight, weights, optimiser state). It is written under a temporary
name, synced and renamed, so a checkpoint is whole or not there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.core.plain import freeze, thaw
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.sim.driver import SimDevice, SimServer, Simulation
from fedoptima.sim.kernel import EventKernel
from fedoptima.trace.writer import Mark

_KEEP = 2
_STATE, _TENSORS = "state.json", "tensors.safetensors"


class SavedEngine(Protocol):
    def save(self) -> tuple[dict[str, object], dict[str, Tensor]]: ...
    def restore(self, state: Mapping[str, object], tensors: dict[str, Tensor]) -> None: ...


Engines = Mapping[NodeId, SavedEngine]  # the server's among them


def save_checkpoint(folder: Path, simulation: Simulation, engines: Engines, mark: Mark) -> Path:
    payloads: dict[PayloadId, object] = {}
    state: dict[str, object] = {
        "kernel": freeze(simulation.kernel, payloads),
        "server": freeze(simulation.server, payloads),
        "devices": [
            [name, freeze(device, payloads)] for name, device in simulation.devices.items()
        ],
        "events": simulation.events,
        "timer_number": simulation.timer_number,
        "trace": [mark.nbytes, mark.records],
        "engines": {},
    }
    tensors: dict[str, Tensor] = {}
    for identity, value in payloads.items():
        for name, tensor in cast(Mapping[str, Tensor], value or {}).items():
            tensors[f"payload|{identity}|{name}"] = tensor
    books: dict[str, object] = {}
    for node, engine in engines.items():
        books[node], own = engine.save()
        tensors |= {f"engine|{node}|{name}": tensor for name, tensor in own.items()}
    state["engines"] = books
    return _write(folder, simulation.events, state, tensors)


def _write(folder: Path, number: int, state: dict[str, object], tensors: dict[str, Tensor]) -> Path:
    # Copies: safetensors refuses tensors that share memory, and many here do.
    copies = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"{number:012d}"
    temporary = folder / f".{number:012d}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    (temporary / _STATE).write_text(json.dumps(state))
    save_file(copies, temporary / _TENSORS)
    for path in (temporary / _STATE, temporary / _TENSORS, temporary):
        _sync(path)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    _sync(folder)
    for old in sorted(folder.glob("[0-9]*"))[:-_KEEP]:
        shutil.rmtree(old)
    return final


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def newest_checkpoint(folder: Path) -> Path | None:
    found = sorted(folder.glob("[0-9]*")) if folder.is_dir() else []
    return found[-1] if found else None


def load_checkpoint(
    path: Path, simulation: Simulation, engines: Engines, compute: torch.device
) -> Mark:
    """Put ``simulation`` and ``engines`` where they were; says where the trace was then."""
    try:
        state = json.loads((path / _STATE).read_text())
        tensors = load_file(path / _TENSORS, device=str(compute))
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"{path}: not a whole checkpoint ({error}); remove this folder to go on from the "
            "one before, or start the run anew"
        ) from error
    payloads: dict[PayloadId, object] = {}
    own: dict[str, dict[str, Tensor]] = {node: {} for node in engines}
    for key, tensor in tensors.items():
        kind, owner, name = key.split("|", 2)
        if kind == "engine":
            own[owner][name] = tensor
        else:
            cast(dict[str, Tensor], payloads.setdefault(PayloadId(owner), {}))[name] = tensor
    simulation.kernel = cast(EventKernel, thaw(state["kernel"], payloads))
    simulation.server = cast(SimServer, thaw(state["server"], payloads))
    for name, device in state["devices"]:
        simulation.devices[name] = cast(SimDevice, thaw(device, payloads))
    simulation.events = state["events"]
    simulation.timer_number = state["timer_number"]
    for node, engine in engines.items():
        engine.restore(state["engines"][node], own[node])
    return Mark(*state["trace"])
