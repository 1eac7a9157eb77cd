"""``fedoptima doctor``: is this machine ready, and if not, what helps?"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import fedoptima.cli.options as options
from fedoptima.cli.errors import FAILED
from fedoptima.core.errors import ConfigError
from fedoptima.display.console import stdout
from fedoptima.version import __version__

_OLDEST_PYTHON = (3, 11)
_GB = 1e9
_LITTLE_DISK = 2.0  # GB
_FEW_FILES = 1024
_SOON = 30  # days until a certificate ends
_EXTRAS = {  # what is imported, and what for
    "data": (("pyarrow", "PIL", "sklearn"), "data sets as Parquet, images, the digits"),
    "report": (("plotly",), "fedoptima report"),
    "dashboard": (("starlette", "uvicorn", "plotly"), "fedoptima dashboard"),
    "deploy": (("grpc", "google.protobuf", "cryptography"), "fedoptima run, server, device"),
    "track": (("tensorboard", "mlflow", "prometheus_client"), "TensorBoard, MLflow, Prometheus"),
    "ray": (("ray",), "comparisons on a cluster"),
}


@dataclass(frozen=True)
class Finding:
    what: str
    found: str
    way_out: str = ""  # empty: all is well
    optional: bool = False  # may be missing


def doctor(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where a server would listen.")
    ] = "127.0.0.1:50051",
    certs: Annotated[
        Path | None,
        typer.Option("--certs", metavar="DIR", help="Also check the certificates in this folder."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Look for data sets here.")
    ] = None,
    as_json: options.AsJSON = False,
) -> None:
    """Check this machine: Python, torch, GPU, extras, data, limits, ports, clock, certificates.

    Every line says ok, or what to do. The exit code is 1 if something is wrong.
    """
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        _torch,
        _machine,
        _extras,
        lambda: _data(data),
        _open_files,
        lambda: _port(listen),
        _clock,
    ]
    if certs is not None:
        checks.append(lambda: _certificates(certs))
    findings = [finding for check in checks for finding in check()]
    wrong = [finding for finding in findings if finding.way_out and not finding.optional]
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        console = stdout()
        for finding in findings:
            word, style = ("ok", "green") if not finding.way_out else ("wrong", "red")
            if finding.way_out and finding.optional:
                word, style = "missing", "yellow"
            line = Text.assemble((f"{word:8}", style), (finding.what, "bold"), f": {finding.found}")
            console.print(line, soft_wrap=True)
            if finding.way_out:
                console.print(Text(f"        {finding.way_out}"), soft_wrap=True)
    if wrong:
        raise typer.Exit(FAILED)


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info[:2] < _OLDEST_PYTHON
    yield Finding(
        "Python",
        f"{version}, {sys.executable}",
        f"install Python {'.'.join(map(str, _OLDEST_PYTHON))} or later" if old else "",
    )
    yield Finding("fedoptima", f"{__version__}, {Path(__file__).parents[2]}")


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library of it is missing
        yield Finding("torch", f"cannot be loaded ({error})", "pip install torch")
        return
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    yield Finding("torch", f"{torch.__version__}, {built}")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(index)
            memory = f"{about.total_memory / _GB:.0f} GB"
            yield Finding(f"GPU cuda:{index}", f"{about.name}, {memory}")
    elif Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"):
        way_out = "install a build of torch with CUDA (pytorch.org), or a driver that fits it"
        yield Finding("GPU", "there is an NVIDIA driver, but torch finds no GPU", way_out)
    else:
        yield Finding("GPU", "none; everything runs on the CPU")


def _machine() -> Iterator[Finding]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GB
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("CPU", f"{cores} cores, {memory:.1f} GB memory")
    free = shutil.disk_usage(".").free / _GB
    little = "make room, or give --out a folder on another disk" if free < _LITTLE_DISK else ""
    yield Finding("disk", f"{free:.1f} GB free in {Path.cwd()}", little)


def _extras() -> Iterator[Finding]:
    for extra, (modules, purpose) in _EXTRAS.items():
        missing = [module for module in modules if not _is_installed(module)]
        found = f"without {', '.join(missing)}" if missing else "installed"
        way_out = options.install_command(extra) if missing else ""
        yield Finding(f"extra {extra}", f"{found} ({purpose})", way_out, optional=True)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def _data(directory: Path | None) -> Iterator[Finding]:
    from fedoptima.data.layouts import data_directories
    from fedoptima.data.registry import DATASETS

    folders = data_directories(directory)
    there = [folder for folder in folders if folder.is_dir()]
    sets = [name for name, item in DATASETS.items() if item.where(directory) is not None]
    found = f"{', '.join(sets) or 'no data sets'} (looked in {', '.join(map(str, folders))})"
    way_out = "name the folder of your data sets: --data DIR, FEDOPTIMA_DATA or data.directory"
    yield Finding("data", found, "" if there or sets else way_out, optional=True)


def _open_files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    few = hard not in (resource.RLIM_INFINITY, -1) and hard < _FEW_FILES
    way_out = "raise it (ulimit -Hn, LimitNOFILE= of a systemd unit): a connection takes one"
    found = f"{soft:,}, may be raised to {most}" if soft >= 0 else "unlimited"
    yield Finding("open files", found, way_out if few else "")


def _port(listen: str) -> Iterator[Finding]:
    import socket

    from fedoptima.runtime.address import bind_error, parse_address

    address = parse_address(listen, option="--listen", any_port=True)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        socket.create_server((address.host, address.port), family=family).close()
    except OSError:
        _, _, way_out = bind_error(address).partition("; ")
        yield Finding("port", f"{address} cannot be listened on", way_out or bind_error(address))
        return
    yield Finding("port", f"{address} is free")


def _clock() -> Iterator[Finding]:
    """A certificate is refused by a clock that is wrong; ours is later than this file."""
    now, written = time.time(), Path(__file__).stat().st_mtime
    way_out = "set it (timedatectl set-ntp true): certificates would be refused"
    wrong = now < written - 24 * 3600
    said = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M} UTC"
    yield Finding("clock", said, way_out if wrong else "")


def _certificates(folder: Path) -> Iterator[Finding]:
    with options.needing_extra("deploy", "reading certificates", "cryptography"):
        from fedoptima.runtime.security.pem import common_name, read_certificates
    files = [file for file in sorted(folder.rglob("*.pem")) if not file.stem.endswith("-key")]
    if not files:
        yield Finding("certificates", f"none in {folder}", f"fedoptima certs init --out {folder}")
    now = datetime.now(UTC)
    for file in files:
        try:
            certificate = read_certificates(file)[0]
        except ConfigError as error:
            yield Finding(f"certificate {file.name}", str(error), "make it again: fedoptima certs")
            continue
        ends, begins = certificate.not_valid_after_utc, certificate.not_valid_before_utc
        days = (ends - now).days
        found = f"of {common_name(certificate)}, until {ends:%Y-%m-%d} ({days} days)"
        way_out = ""
        if now < begins:
            way_out = f"is valid from {begins:%Y-%m-%d %H:%M} UTC on; is the clock right here?"
        elif days < _SOON:
            over = "is over" if ends < now else "ends soon"
            way_out = f"{over}: make a new one with fedoptima certs, and copy it to its machine"
        yield Finding(f"certificate {file.name}", found, way_out)
