"""Decoded data kept on disk, so that images are decoded and words are counted once.

An entry is named by everything that it was made from; it is never updated, only written whole
under another name and renamed. The cache is optional: if it cannot be read, the entry is made
again; if it cannot be written, the run continues without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # a dry run looks here for what is known of a data set, and needs no torch
    from torch import Tensor

FORMAT = 1  # raise it when a reader or the tokeniser gives a different result for the same files

Tensors: TypeAlias = "dict[str, Tensor]"


def cache_directory() -> Path:
    chosen = os.environ.get("FEDOPTIMA_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "fedoptima"


def cached(
    name: str,
    files: Sequence[Path],
    options: Mapping[str, int | float | str],
    build: Callable[[], Tensors],
) -> Tensors:
    """What ``build`` makes of ``files``, from the cache where the same files were read before."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    entry = decoded(name, files, options)
    with suppress(OSError, SafetensorError):
        return load_file(entry)
    tensors = build()
    _write(entry, tensors)
    return tensors


def decoded(name: str, files: Sequence[Path], options: Mapping[str, int | float | str]) -> Path:
    """Where what was made of ``files`` is kept, if it is."""
    return cache_directory() / "decoded" / f"{name}-{_key(files, options)}.safetensors"


def _key(files: Sequence[Path], options: Mapping[str, int | float | str]) -> str:
    digest = blake2b(f"{FORMAT} {sorted(options.items())}".encode(), digest_size=12)
    for path in files:
        facts = path.stat()
        line = f"\n{path.parent.name}/{path.name} {facts.st_size} {facts.st_mtime_ns}"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def _write(entry: Path, tensors: Tensors) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temporary = entry.with_name(f"{entry.name}.{os.getpid()}.partial")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: value.contiguous() for key, value in tensors.items()}, temporary)
        temporary.replace(entry)
    except (OSError, SafetensorError):
        with suppress(OSError):
            temporary.unlink()
