"""Disks that can be filled: small file systems in memory, which root may mount."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.small_disk import SmallDisk

_SIZE = 32 << 20
_INSIDE = "FEDOPTIMA_CHAOS_NAMESPACE"


@contextmanager
def disk(path: Path, *, real: bool) -> Iterator[SmallDisk]:
    """A disk of its own at ``path``; not ``real``: a plain folder, which is never full."""
    path.mkdir(parents=True)
    if real:
        _mount(path)
    try:
        yield SmallDisk(path)
    finally:
        if real:
            kept = path.with_name(f"{path.name}.kept")
            shutil.copytree(path, kept, ignore=shutil.ignore_patterns("ballast"))
            subprocess.run(["umount", "-l", str(path)], check=False)
            path.rmdir()
            kept.rename(path)


def _mount(path: Path) -> None:
    options = f"size={_SIZE},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)


def can_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        try:
            _mount(Path(folder))
        except subprocess.CalledProcessError:
            return False
        subprocess.run(["umount", folder], check=False)
        return True


def enter_namespace() -> None:
    """Begin again where mounting is allowed and ends with the process, if the system has that."""
    if _INSIDE in os.environ or shutil.which("unshare") is None:
        return
    how = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    if subprocess.run([*how, "true"], capture_output=True, check=False).returncode:
        return
    again = [*how, sys.executable, "-m", "tools.chaos", *sys.argv[1:]]
    os.execvpe(again[0], again, {**os.environ, _INSIDE: "1"})
