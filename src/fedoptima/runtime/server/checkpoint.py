"""A real server between two jobs, on disk.

Taken in three steps, so that neither the event loop nor the engine waits for a disk: `capture` in
the event loop (plain data, no tensor is touched), `Captured.complete` on the compute thread ahead
of the next job, `Captured.write` on any thread. The job that was ordered but not begun is in it and
is run again; devices are not in it: they keep their own state and join again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

import fedoptima.core.serializable_types  # noqa: F401  (makes every core class known by name)
from fedoptima.core.effects import Evaluate, Run
from fedoptima.core.errors import InvariantBroken
from fedoptima.core.events import Disconnected, Extended, Restarted
from fedoptima.core.serialization import freeze, thaw
from fedoptima.core.server import ServerCore
from fedoptima.core.types import SERVER, NodeId, PayloadId
from fedoptima.engine.checkpoint import (
    KEPT,
    Saved,
    SavedEngine,
    engine_tensors,
    newest_checkpoint,
    payload_tensors,
    restore_checkpoint,
    write_checkpoint,
)
from fedoptima.trace.device_trace import DeviceMark
from fedoptima.trace.writer import Mark

# Accounts of the records so far, taken already; calling it, on any thread, gives them for JSON.
SavedAccounts = Callable[[], Mapping[str, object]]


class Captured:
    """A checkpoint in the making."""

    def __init__(
        self,
        state: dict[str, object],
        payloads: Mapping[PayloadId, object],
        accounts: SavedAccounts,
    ) -> None:
        self.core = state["core"]  # in its plain form
        self._state = state
        self._payloads = payloads
        self._accounts = accounts
        self._tensors: dict[str, Tensor] | None = None

    def complete(self, engine: SavedEngine) -> None:
        """Add what the engine holds; on its own thread, before its next job."""
        self._state["engine"], own = engine.save()
        tensors = payload_tensors(self._payloads) | engine_tensors(SERVER, own)
        self._tensors = {name: tensor.detach().to("cpu") for name, tensor in tensors.items()}

    def write(
        self, folder: Path, number: int, mark: Mark, *, config: str = "", keep: int = KEPT
    ) -> Path:
        """Checkpoint ``number``; it and ``keep - 1`` before it are on disk when this returns.

        ``mark``: where the trace was at that moment. ``config``: see `write_checkpoint`.
        """
        if self._tensors is None:
            raise InvariantBroken("a checkpoint is written before the engine was asked")
        state = {**self._state, "trace": mark.plain(), "accounts": self._accounts()}
        return write_checkpoint(folder, number, state, self._tensors, config=config, keep=keep)


@dataclass(frozen=True, kw_only=True)
class ServerProcess:
    """What a checkpoint holds beside the core and the engine."""

    running: Run | None
    timers: Mapping[str, float]  # by key, when they are due
    evaluations: Sequence[Evaluate]  # asked for, not answered
    sessions: Mapping[NodeId, int]  # the number of each device's last one
    run: str
    incarnation: int  # counts the server's processes in this run
    now: float
    device_marks: Mapping[NodeId, DeviceMark] = field(default_factory=dict)  # of devices' own files


def capture(
    core: ServerCore, process: ServerProcess, accounts: SavedAccounts = lambda: {}
) -> Captured:
    """``accounts``: as they are now, of the records so far."""
    payloads: dict[PayloadId, object] = {}
    plain = freeze(core, payloads)
    needed = _needed(plain, payloads, process.now)
    state: dict[str, object] = {
        "core": plain,
        "running": freeze(process.running, needed),
        "timers": dict(process.timers),
        "evaluations": freeze(tuple(process.evaluations)),
        "sessions": dict(process.sessions),
        "run": process.run,
        "life": process.incarnation,
        "now": process.now,
        "devices": dict(process.device_marks),
    }
    return Captured(state, needed, accounts)


def _needed(
    plain: object, payloads: Mapping[PayloadId, object], now: float
) -> dict[PayloadId, object]:
    """The payloads that a restored server can still use.

    Its devices are gone, and with them their queued activations, nearly all of the memory. Which is
    for the core to say: a copy of it handles what the restored one will handle.
    """
    needed: dict[PayloadId, object] = {}
    copy = cast(ServerCore, thaw(plain, payloads))
    if copy.stopped:
        freeze(copy.handle(Extended(copy.progress.rule), now), needed)
    freeze(copy.handle(Restarted(), now), needed)
    for device, session in copy.leaving_order():
        freeze(copy.handle(Disconnected(device, session), now), needed)
    freeze(copy, needed)
    used = {id(value) for value in needed.values()}
    return {key: value for key, value in payloads.items() if id(value) in used}  # keys as in plain


@dataclass(frozen=True, kw_only=True)
class Restored(ServerProcess):
    """A server as it was captured; its engine has been put back already."""

    core: ServerCore
    mark: Mark
    accounts: Mapping[str, object]  # that were saved, by name
    number: int  # the checkpoint's own: the next one's is higher


def load_server_checkpoint(
    folder: Path, engine: SavedEngine, compute: torch.device, trace: Path | None = None
) -> Restored | None:
    """The newest complete checkpoint in ``folder``; None if none was ever written.

    ``trace``: the run's, which has to reach as far.
    """
    newest = newest_checkpoint(folder)
    if newest is None:
        return None

    def restore(saved: Saved) -> Restored:
        state, payloads = saved.state, saved.payloads()
        mark = Mark.from_plain(state["trace"])
        if trace is not None:
            mark.check(trace)
        own = saved.of_engines().get(SERVER, {})
        engine.restore(cast(Mapping[str, object], state["engine"]), own)
        return Restored(
            core=cast(ServerCore, thaw(state["core"], payloads)),
            running=cast(Run | None, thaw(state["running"], payloads)),
            timers=cast(Mapping[str, float], state["timers"]),
            evaluations=cast(Sequence[Evaluate], thaw(state["evaluations"])),
            sessions=cast(Mapping[NodeId, int], state["sessions"]),
            run=cast(str, state["run"]),
            incarnation=cast(int, state["life"]),
            now=cast(float, state["now"]),
            mark=mark,
            accounts=cast(Mapping[str, object], state.get("accounts", {})),
            device_marks={
                device: DeviceMark(*mark)
                for device, mark in cast(
                    "dict[NodeId, tuple[int, int, float]]", state.get("devices", {})
                ).items()
            },
            number=saved.number,
        )

    return restore_checkpoint(newest, compute, restore)
