"""What it takes to resume a run with ten million records, beside one with a thousand.

A real run is stopped, and the records before its checkpoint are repeated until there are as many as
wanted: half of them in the server's trace and half in the devices' files; a simulation has one
file. The checkpoint is told so. Long and short take turns. It counts from the call that resumes the
run until devices can connect (server), or until the run has stopped again (simulation); memory is
the process's peak until then.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path

from fedoptima.engine.checkpoint import newest_checkpoint
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.server_run import RunHooks, serve_run
from fedoptima.experiments.server_setup import prepare_server
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.experiments.simulation import resume, simulate
from fedoptima.trace.writer import COMPRESSION, read_lines

RECIPES = Path(__file__).parents[1] / "recipes"
FEW, MANY, ROUNDS = 1_000, 10_000_000, 3
MOST_SECONDS, MOST_MIB = 5.0, 50.0  # more than the short run
_DEVICES = 4  # in the recipe
_PIECE = 10_000  # records in a piece that is repeated
_PATIENCE = 120.0  # seconds until a run has a checkpoint


# ---- runs of any length --------------------------------------------------------------------------


def stopped_simulation(folder: Path) -> None:
    events = 0

    def enough() -> bool:
        nonlocal events
        events += 1
        return events > FEW // 2

    with suppress(Interrupted):
        simulate(RECIPES / "demo_digits.toml", out=folder, interrupted=enough, progress=False)


def stopped_server(folder: Path) -> None:
    recipe = str(RECIPES / "demo_network.toml")
    settings = ["--set", "stop={hours=1}", "--set", "deploy.checkpoint_seconds=1"]
    command = ["-m", "fedoptima", "run", recipe, *settings, "--out", str(folder)]
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + _PATIENCE
    try:
        while not _have_all_recorded(folder) and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _have_all_recorded(folder: Path) -> bool:
    """As a checkpoint knows."""
    checkpoint = newest_checkpoint(folder / "checkpoints")
    if checkpoint is None:
        return False
    try:
        marks = json.loads((checkpoint / "state.json").read_text())["devices"]
    except FileNotFoundError:  # a newer one has replaced it
        return False
    return len(marks) == _DEVICES and all(records for _, records, _ in marks.values())


def lengthen(folder: Path, records: int) -> None:
    """The run in ``folder`` has so many records from now on, at least."""
    checkpoint = newest_checkpoint(folder / "checkpoints")
    assert checkpoint is not None, "the run has no checkpoint"
    state = json.loads((checkpoint / "state.json").read_text())
    directory = RunDirectory(folder)
    files = directory.device_traces()
    wanted = records // 2 if files else records
    nbytes, known, digest = state["trace"]
    size, more = _lengthen(directory.trace, nbytes, wanted - known)
    state["trace"] = [size, known + more, digest]
    for file in files:
        nbytes, known, last = state["devices"][file.name.removesuffix(".jsonl.gz")]
        size, more = _lengthen(file, nbytes, wanted // len(files) - known)
        state["devices"][file.name.removesuffix(".jsonl.gz")] = [size, known + more, last]
    (checkpoint / "state.json").write_text(json.dumps(state))
    checksums = checkpoint / "SHA256SUMS"
    names = [line.split()[1] for line in checksums.read_text().splitlines()]
    sums = (
        f"{hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()}  {name}\n"
        for name in names
    )
    checksums.write_text("".join(sums))


def _lengthen(trace: Path, nbytes: int, records: int) -> tuple[int, int]:
    """Its size then, and how many records it has more."""
    with trace.open("r+b") as file:
        file.truncate(nbytes)
    if records <= 0:
        return nbytes, 0
    lines = list(islice(cycle(read_lines(trace)), _PIECE))
    assert lines, f"{trace} has no records to repeat"
    piece = gzip.compress("".join(f"{line}\n" for line in lines).encode(), COMPRESSION, mtime=0)
    pieces = -(-records // len(lines))
    with trace.open("ab") as file:
        for _ in range(pieces):
            file.write(piece)
    return nbytes + pieces * len(piece), pieces * len(lines)


# ---- resuming one --------------------------------------------------------------------------------


def resumed(kind: str, folder: Path) -> tuple[float, float]:
    """(seconds, MiB) of a process that resumes the run and stops it again."""
    command = [sys.executable, "-m", "benchmarks.resume_cost", "--resume", kind, str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, mebibytes = map(float, done.stdout.splitlines()[-1].split())
    return seconds, mebibytes


def resume_here(kind: str, folder: Path) -> None:
    if kind == "simulation":
        began = time.perf_counter()
        with suppress(Interrupted):
            resume(folder, interrupted=lambda: True, progress=False)
        _print(time.perf_counter() - began)
        return
    directory, recipe, _ = RunDirectory.open(folder)
    setup = prepare_server(recipe)
    taken: list[float] = []
    began = time.perf_counter()
    hooks = RunHooks(
        ready=lambda _: taken.append(time.perf_counter() - began),
        observe=lambda _: None,  # somebody watches: that takes accounts, too
        interrupted=lambda: True,
    )
    with suppress(Interrupted):
        serve_run(setup, directory, resume=True, hooks=hooks)
    _print(taken[0])


def _print(seconds: float) -> None:
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


# ---- both ----------------------------------------------------------------------------------------


def compare(kind: str, many: int, rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        base = Path(name) / "base"
        (stopped_simulation if kind == "simulation" else stopped_server)(base)
        found: dict[int, list[tuple[float, float]]] = {FEW: [], many: []}
        for _ in range(rounds):
            for records, figures in found.items():
                copy = Path(name) / "copy"
                shutil.copytree(base, copy)
                lengthen(copy, records)
                figures.append(resumed(kind, copy))
                shutil.rmtree(copy)
    (short, low), (long, high) = (
        tuple(map(statistics.median, zip(*figures, strict=True))) for figures in found.values()
    )
    return {
        "seconds": {"short": short, "long": long, "more": long - short},
        "MiB": {"short": low, "long": high, "more": high - low},
        "all": {f"{records:,} records": figures for records, figures in found.items()},
    }


def measure(many: int = MANY, rounds: int = ROUNDS) -> dict[str, object]:
    kinds = {kind: compare(kind, many, rounds) for kind in ("server", "simulation")}
    shares = [
        max(figures["seconds"]["more"] / MOST_SECONDS, figures["MiB"]["more"] / MOST_MIB)  # type: ignore[index]
        for figures in kinds.values()
    ]
    return {
        "what": f"resume of {many:,} records, more than of {FEW:,}: the largest part of its bound",
        "ratio": max(shares),
        "at most": 1.0,
        "bounds": {"seconds": MOST_SECONDS, "MiB": MOST_MIB},
        **kinds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=MANY, help="of the long run")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--resume", nargs=2, metavar=("KIND", "RUN"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.resume:
        kind, folder = arguments.resume
        resume_here(kind, Path(folder))
    else:
        print(json.dumps(measure(arguments.records, arguments.rounds), indent=1))


if __name__ == "__main__":
    main()
