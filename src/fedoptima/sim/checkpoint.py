"""A simulation between two events, on disk: a run resumed from it continues exactly the same.

The state holds the machines, the event heap, the links and the engines' bookkeeping; the tensors
are the payloads in flight, the weights and the optimisers' state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch

import fedoptima.core.serializable_types  # noqa: F401  (makes every core class known by name)
from fedoptima.core.serialization import freeze, thaw
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.engine.checkpoint import (
    Saved,
    SavedEngine,
    engine_tensors,
    payload_tensors,
    restore_checkpoint,
    write_checkpoint,
)
from fedoptima.sim.admission import Inspected
from fedoptima.sim.driver import Simulation
from fedoptima.sim.state import SimState
from fedoptima.trace.writer import Mark

Engines = Mapping[NodeId, SavedEngine]  # the server's among them


def save_checkpoint(
    folder: Path,
    simulation: Simulation,
    engines: Engines,
    mark: Mark,
    accounts: Mapping[str, object] | None = None,
    config: str = "",
) -> Path:
    """``accounts``: of the records so far, ready for JSON. ``config``: see `write_checkpoint`."""
    simulation.settle()
    payloads: dict[PayloadId, object] = {}
    state: dict[str, object] = {
        "simulation": freeze(simulation.state, payloads),
        "inspected": simulation.admission.save(),
        "trace": mark.plain(),
        "accounts": accounts,
    }
    tensors = payload_tensors(payloads)
    books: dict[str, object] = {}
    for node, engine in engines.items():
        books[node], own = engine.save()
        tensors |= engine_tensors(node, own)
    state["engines"] = books
    return write_checkpoint(folder, simulation.events, state, tensors, config=config)


def load_checkpoint(
    path: Path,
    simulation: Simulation,
    engines: Engines,
    compute: torch.device | str,
    trace: Path | None = None,
) -> tuple[Mark, object]:
    """Restore ``simulation`` and ``engines``; returns the position of the trace at that time, and
    the accounts that were saved with it, if any were.

    If ``path`` is damaged, or ``trace`` does not reach as far, the checkpoint before it is used.
    """

    def restore(saved: Saved) -> tuple[Mark, object]:
        state, payloads, own = saved.state, saved.payloads(), saved.of_engines()
        mark = Mark.from_plain(state["trace"])
        if trace is not None:
            mark.check(trace)
        simulation.state = cast(SimState, thaw(state["simulation"], payloads))
        simulation.admission.restore(cast(Inspected, state.get("inspected", {})))
        books = cast(Mapping[str, Mapping[str, object]], state["engines"])
        for node, engine in engines.items():
            engine.restore(books[node], own.get(node, {}))
        return mark, state.get("accounts")

    return restore_checkpoint(path, compute, restore)
