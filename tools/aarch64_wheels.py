"""Is there an aarch64 wheel of everything that a device needs? Asks the package index, by pip.

    python -m tools.aarch64_wheels            # look, and say what is missing
    python -m tools.aarch64_wheels --write    # and record the answer in deploy/aarch64-wheels.md

What a device needs is ``fedoptima[deploy]`` with what that requires in turn, at the versions of
constraints.txt, and the last torch whose aarch64 wheel is for CPUs: since 2.11 the one of PyPI is a
build with CUDA.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import date
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "deploy" / "aarch64-wheels.md"
EXTRA = "deploy"
PYTHONS = ("3.11", "3.12", "3.13")
# What glibc 2.28 and later run: Debian 10, Ubuntu 20.04, JetPack 5 and anything newer.
GLIBC = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
WITHOUT_CUDA = "2.10.0"  # the last torch whose aarch64 wheel on PyPI is for CPUs
WITH_CUDA = ("nvidia-", "cuda-")


def pinned() -> dict[str, str]:
    """The versions in constraints.txt, by normalised name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version.strip() for name, version in pins}


def needed_by_a_device() -> list[str]:
    """The names of all distributions that ``fedoptima[deploy]`` requires on an aarch64 machine.

    Those of CUDA, which torch requires here if it is a build with it, are not of a device.
    """
    machine = {"platform_machine": "aarch64", "sys_platform": "linux", "platform_system": "Linux"}
    found: set[str] = set()
    waiting = [("fedoptima", EXTRA)]
    while waiting:
        name, extra = waiting.pop()
        for text in distribution(name).requires or ():
            need = Requirement(text)
            if need.marker and not any(
                need.marker.evaluate({**machine, "extra": each}) for each in {extra, ""}
            ):
                continue
            required = canonicalize_name(need.name)
            if required not in found and not required.startswith((*WITH_CUDA, "triton")):
                found.add(required)
                waiting += [(required, each) for each in (need.extras or {""})]
    return sorted(found)


def wheel_of(requirement: str, python: str) -> tuple[str, list[str]] | None:
    """The file name of the wheel that pip would take, and what it requires; None: there is none."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        tags = [word for glibc in GLIBC for word in ("--platform", f"{glibc}_aarch64")]
        command = [sys.executable, "-m", "pip", "install", "--isolated", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--no-deps", "--only-binary=:all:", "--target", folder]
        command += [*tags, "--python-version", python, "--report", str(report), requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            if "No matching distribution" in done.stderr:
                return None
            raise SystemExit(f"pip could not ask for {requirement}:\n{done.stderr}")
        found = json.loads(report.read_text(encoding="utf-8"))["install"][0]
        return Path(found["download_info"]["url"]).name, found["metadata"].get("requires_dist", [])


def without_cuda(requires: list[str]) -> bool:
    """On an aarch64 Linux machine."""
    machine = {"platform_machine": "aarch64", "sys_platform": "linux", "platform_system": "Linux"}
    needs = (Requirement(text) for text in requires)
    return not any(
        need.name.startswith(WITH_CUDA)
        and (need.marker is None or need.marker.evaluate({**machine, "extra": ""}))
        for need in needs
    )


def look() -> tuple[list[tuple[str, str, str]], list[str]]:
    """Rows (requirement, what each Python gets, remark), and what is missing."""
    pins = pinned()
    names = needed_by_a_device()
    requirements = [f"{name}=={pins[name]}" for name in names]
    requirements.insert(names.index("torch") + 1, f"torch=={WITHOUT_CUDA}")
    rows, missing = [], []
    for requirement in requirements:
        found = {python: wheel_of(requirement, python) for python in PYTHONS}
        missing += [f"{requirement} for Python {python}" for python in PYTHONS if not found[python]]
        wheels = sorted({wheel[0] for wheel in found.values() if wheel})
        have = ", ".join(python for python in PYTHONS if found[python]) or "none"
        pure = all("-none-any" in wheel for wheel in wheels)
        cuda = any(wheel and not without_cuda(wheel[1]) for wheel in found.values())
        remark = "any machine" if pure else "with CUDA" if cuda else "aarch64"
        rows.append((requirement, have, remark))
        print(f"{requirement}: {have} ({remark})", flush=True)
    return rows, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"record it in {RECORD.name}")
    arguments = parser.parse_args()
    rows, missing = look()
    if arguments.write:
        table = "\n".join(f"| `{name}` | {have} | {remark} |" for name, have, remark in rows)
        RECORD.write_text(
            "# aarch64 wheels of what a device needs\n\n"
            f"Made by `python -m tools.aarch64_wheels --write` on {date.today()}, from PyPI: what "
            f"pip takes for `{GLIBC[0]}_aarch64` and older, without building anything.\n\n"
            "| requirement | wheel for Python | for |\n|---|---|---|\n"
            f"{table}\n\n"
            f"Missing: {', '.join(missing) or 'nothing'}.\n",
            encoding="utf-8",
        )
    if missing:
        raise SystemExit("no wheel: " + ", ".join(missing))


if __name__ == "__main__":
    main()
