"""Checkpoints on disk: a folder with one JSON (the state), one safetensors file (the tensors), a
copy of the run's config.json, and the checksums of all, in the form that `sha256sum --check` reads.

A checkpoint is written under a temporary name, synced and renamed, so it is complete or absent. The
last few are kept: if the newest is damaged or cannot be restored, the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, cast
from urllib.parse import quote, unquote

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.core.types import PayloadId
from fedoptima.trace.run_folder import put_on_disk
from fedoptima.version import __version__

SCHEMA = 3  # 1: fedoptima 0.1.0, without the state of the trace's digest; 2: without checksums
KEPT = 2  # the newest, and one to fall back to
_CONFIG, _STATE, _TENSORS = "config.json", "state.json", "tensors.safetensors"
_CHECKSUMS = "SHA256SUMS"
_log = logging.getLogger(__name__)

Restored = TypeVar("Restored")


class SavedEngine(Protocol):
    def save(self) -> tuple[dict[str, object], dict[str, Tensor]]:
        """State and tensors; the engine never writes to these tensors again."""

    def restore(self, state: Mapping[str, object], tensors: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds."""

    number: int
    state: Mapping[str, object]
    tensors: Mapping[str, Tensor]

    def payloads(self) -> dict[PayloadId, object]:
        return {
            PayloadId(identity): named
            for identity, named in _grouped("payload|", self.tensors).items()
        }

    def of_engines(self) -> dict[str, dict[str, Tensor]]:
        return _grouped("engine|", self.tensors)


def payload_tensors(payloads: Mapping[PayloadId, object]) -> dict[str, Tensor]:
    """The values of payloads, as `serialization.freeze` collects them, named for a checkpoint."""
    return {
        f"payload|{_escaped(identity)}|{name}": tensor
        for identity, value in payloads.items()
        for name, tensor in cast(Mapping[str, Tensor], value or {}).items()
    }


def engine_tensors(node: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"engine|{_escaped(node)}|{name}": tensor for name, tensor in tensors.items()}


def _escaped(owner: str) -> str:
    return quote(owner, safe="/~")  # its name ends at the next "|"


def _grouped(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith(kind):
            owner, name = key.removeprefix(kind).split("|", 1)
            groups.setdefault(unquote(owner), {})[name] = tensor
    return groups


# ---- writing ---------------------------------------------------------------------------------


def write_checkpoint(
    folder: Path,
    number: int,
    state: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    *,
    config: str = "",
    keep: int = KEPT,
) -> Path:
    """Checkpoint ``number`` in ``folder``; it is on disk when this returns. ``keep``: the last.

    ``config``: the text of the run's config.json, should that be damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left_by_a_kill in folder.glob(".*.tmp"):
        shutil.rmtree(left_by_a_kill)
    final = folder / f"{number:012d}"
    temporary = folder / f".{number:012d}.tmp"
    temporary.mkdir()
    try:
        if config:
            (temporary / _CONFIG).write_text(config)
        (temporary / _STATE).write_text(json.dumps({"schema": SCHEMA, **state}))
        save_tensors(temporary / _TENSORS, _without_shared_memory(tensors))
        (temporary / _CHECKSUMS).write_text(_checksums(temporary))
        for path in (*temporary.iterdir(), temporary):
            put_on_disk(path)
    except OSError:  # a full disk: half a checkpoint would only take room
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _remove(final)
    temporary.rename(final)
    put_on_disk(folder)
    _remove_all_but(keep, final)
    return final


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """As safetensors, with the errors of a disk as those of any other file."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def _checksums(checkpoint: Path) -> str:
    lines = []
    for name in (_CONFIG, _STATE, _TENSORS):
        if name == _CONFIG and not (checkpoint / name).exists():
            continue  # of an earlier version, or without a run
        with (checkpoint / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    return "".join(lines)


def _without_shared_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory, and some here do."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().to("cpu").contiguous()
        if own.untyped_storage().data_ptr() in seen:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        separate[name] = own
    return separate


def _remove_all_but(keep: int, last: Path) -> None:
    """Remove checkpoints with higher numbers, which were damaged: they must not be found again."""
    found = newest_checkpoints(last.parent)
    kept = [path for path in found if path.name <= last.name][:keep]
    for path in found:
        if path not in kept:
            _remove(path)


def _remove(path: Path) -> None:
    """Whatever a damaged file system has made of it."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# ---- reading ---------------------------------------------------------------------------------


def newest_checkpoints(folder: Path) -> list[Path]:
    """The newest first. Incomplete ones have temporary names, which are ignored."""
    return sorted(folder.glob("[0-9]*"), reverse=True) if folder.is_dir() else []


def newest_checkpoint(folder: Path) -> Path | None:
    return next(iter(newest_checkpoints(folder)), None)


def restore_checkpoint(
    path: Path, compute: torch.device | str, restore: Callable[[Saved], Restored]
) -> Restored:
    """What ``restore`` makes of that checkpoint or, with a warning, of the newest before it that is
    undamaged and can be restored."""
    problem: Exception | None = None
    for candidate in newest_checkpoints(path.parent):
        if candidate.name > path.name:
            continue
        try:
            return restore(_read(candidate, compute))
        except Exception as error:  # whatever is wrong with one, an older one may be good
            if not isinstance(error, ConfigError):
                error = ConfigError(f"{candidate}: cannot be restored ({_brief(error)})")
            elif str(candidate) not in str(error):
                error = ConfigError(f"{candidate}: cannot be restored ({error})")
            _log.warning("%s; trying the one before it", error)
            problem = problem or error
    raise ConfigError(
        f"{problem or f'{path}: missing'}, and no older one is usable; restart the run"
    ) from problem


def _brief(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _read(path: Path, compute: torch.device | str) -> Saved:
    try:
        state = json.loads((path / _STATE).read_text())
        if isinstance(state, dict) and (schema := state.pop("schema", 1)) != SCHEMA:
            raise ConfigError(
                f"{path}: a checkpoint of schema {schema} (fedoptima 0.1.0 wrote 1), "
                f"and this fedoptima ({__version__}) resumes schema {SCHEMA} only"
            )
        if (path / _CHECKSUMS).read_text() != _checksums(path):
            raise ConfigError(f"{path}: not a complete checkpoint (its checksums do not fit)")
        with safe_open(path / _TENSORS, framework="pt", device=str(compute)) as file:
            # Cloned: the file's tensors lie anywhere in it, and how a kernel rounds may depend on
            # the alignment that torch gives its own.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"{path}: not a complete checkpoint ({error})") from error
    return Saved(int(path.name), state, tensors)
