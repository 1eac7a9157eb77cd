"""Does one device with little data harm the model? Two devices with 600 samples, and a tiny third.

    python -m tools.unequal_shares                      # all cases, simulated
    python -m tools.unequal_shares --network            # one of each method, over the network here
    python -m tools.unequal_shares --device cuda --lanes 8

Every asynchronous method, without the third device, then with one that holds 4 and one that holds
40 samples; methods that split the network with the cut after its first and after its second block.
Writes results/unequal_shares/<data set>.json after every run; what is there is not run again. Exits
with 1 if a mean over the seeds is more than 2 points, or one seed more than 4 points, below the
same case without the third device.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import fedoptima
from fedoptima.data.registry import DATASETS, load_dataset
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import prepare
from fedoptima.experiments.simulated_run import run_experiment

ROOT = Path(__file__).parents[1]
BIG = 600  # samples of each of the two other devices
TINY = (4, 40)
EPOCHS = 12
TESTED = 2_000  # test samples, at most
MEAN_POINTS, SEED_POINTS = 2.0, 4.0  # percentage points of accuracy that may be lost
SPLITS: dict[str, tuple[int | None, ...]] = {
    "fedoptima": (1, 2),
    "fedasync": (None,),
    "fedbuff": (None,),
    "oafl": (1, 2),
}
Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    data: str
    method: str
    split: int | None  # blocks on the devices
    tiny: int  # samples of the third device; 0: there is none
    seed: int
    network: bool = False
    epochs: int = EPOCHS

    def __str__(self) -> str:
        cut = f" after block {self.split}" if self.split else ""
        mode = ", network" if self.network else ""
        return f"{self.data}, {self.method}{cut}, tiny {self.tiny}, seed {self.seed}{mode}"


def cases(data: str, methods: Sequence[str], seeds: int, network: bool) -> Iterator[Case]:
    for method in methods:
        for split in SPLITS[method][:1] if network else SPLITS[method]:
            for seed in range(1, (1 if network else seeds) + 1):
                for tiny in (0, TINY[0]) if network else (0, *TINY):
                    yield Case(data, method, split, tiny, seed, network)


def recipe(case: Case, partition: Path, device: str) -> dict[str, Any]:
    devices = [{"name": "big", "count": 2, "gflops": 1.0, "mbps": 50.0}]
    rows = torch.randperm(
        DATASETS[case.data].train, generator=torch.Generator().manual_seed(case.seed)
    ).tolist()
    shares = {"big-1": rows[:BIG], "big-2": rows[BIG : 2 * BIG]}
    if case.tiny:
        devices.append({"name": "tiny", "count": 1, "gflops": 1.0, "mbps": 50.0})
        shares["tiny"] = rows[2 * BIG : 2 * BIG + case.tiny]
    partition.write_text(json.dumps(shares), encoding="utf-8")
    optimizer = {"learning_rate": 0.02, "momentum": 0.9}
    return {
        "name": "unequal_shares",
        "seed": case.seed,
        "device": device,
        "threads": 1,
        "model": {"name": "vgg5"},
        "data": {"name": case.data, "partition": {"kind": "file", "file": str(partition)}},
        "fleet": {"server": {"gflops": 20.0}, "devices": devices},
        "method": {"name": case.method},
        "training": {
            "batch_size": 50,
            "device": optimizer,
            "server": optimizer,
            "schedule": {"kind": "cosine"},  # the last accuracy is not a matter of the last step
            "evaluate_every": float(case.epochs),
        },
        "split": {"at": case.split} if case.split else {},
        "stop": {"epochs": float(case.epochs)},
    }


def run(case: Case, device: str) -> Record:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = recipe(case, folder / "shares.json", device)
        file = folder / "recipe.toml"
        file.write_text("\n".join(f"{key} = {toml(value)}" for key, value in made.items()))
        return over_the_network(file) if case.network else simulated(file)


def simulated(file: Path) -> Record:
    torch.set_num_threads(1)
    made = fedoptima.load_recipe(file)
    data = load_dataset(made.data.name)
    chosen = torch.arange(min(TESTED, len(data.test)))
    experiment = prepare(made, Given(dataset=replace(data, test=data.test.take(chosen))))
    return figures(json.loads(run_experiment(experiment).to_json()))


def over_the_network(file: Path) -> Record:
    """Server and devices as processes of this machine, connected through its loopback."""
    out = file.parent / "run"
    command = [sys.executable, "-m", "fedoptima", "run", str(file), "--out", str(out), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return figures(json.loads((out / "summary.json").read_text()))


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def figures(result: Record) -> Record:
    devices = result["balance"]["devices"]
    return {
        "accuracy": result["accuracy"],
        "epochs": round(result["epochs"], 2),
        "refused": result["refused"],
        "updates": {name: device["updates"] for name, device in devices.items()},
        "influence": {name: round(d["merge_share"], 4) for name, d in devices.items()},
    }


# ---- the verdict ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """One kind of case over its seeds, against the same without the third device."""

    case: Case  # its first seed
    without: float  # mean accuracy in percent
    with_tiny: float
    worst: float  # points lost by the seed that lost most

    @property
    def passed(self) -> bool:
        return self.without - self.with_tiny <= MEAN_POINTS and self.worst <= SEED_POINTS

    def __str__(self) -> str:
        kind = str(self.case).replace(f", seed {self.case.seed}", "")
        return (
            f"{kind}: {self.without:.1f} -> {self.with_tiny:.1f} %, worst seed "
            f"{-self.worst:+.1f}: {'passed' if self.passed else 'FAILED'}"
        )


def verdicts(done: dict[Case, Record]) -> list[Verdict]:
    """Of those cases whose counterpart without the third device has been run as well."""
    pairs: dict[Case, list[tuple[float, float]]] = {}
    for case, record in done.items():
        before = done.get(replace(case, tiny=0))
        if case.tiny and before is not None:
            pair = (100 * before["accuracy"], 100 * record["accuracy"])
            pairs.setdefault(replace(case, seed=1), []).append(pair)
    return [
        Verdict(
            case,
            mean(before for before, _ in seeds),
            mean(after for _, after in seeds),
            max(before - after for before, after in seeds),
        )
        for case, seeds in pairs.items()
    ]


# ---- the record ----------------------------------------------------------------------------------


def load(file: Path) -> dict[Case, Record]:
    if not file.is_file():
        return {}
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
    return {Case(**run.pop("case")): run for run in runs}


def save(file: Path, done: dict[Case, Record], about: Record) -> None:
    runs = [{"case": asdict(case), **record} for case, record in done.items()]
    said = [str(verdict) for verdict in verdicts(done)]
    head = json.dumps({**about, "verdicts": said}, indent=1)[:-2]
    lines = ",\n".join("  " + json.dumps(run) for run in runs)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'{head},\n "runs": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def about(command: Sequence[str], device: str, commit: str) -> Record:
    return {
        "command": shlex.join(["python", "-m", "tools.unequal_shares", *command]),
        "date": datetime.now(UTC).date().isoformat(),
        "fedoptima": f"{fedoptima.__version__}, commit {commit or _commit()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPUs",
    }


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    said = sys.argv[1:] if arguments is None else arguments
    given = _parser().parse_args(said)
    passed = True
    for data in given.data:
        file: Path = given.out / f"{data}.json"
        done, head = load(file), about(said, given.device, given.commit)
        todo = [
            case
            for case in cases(data, given.methods, given.seeds, given.network)
            if case not in done
        ]
        with ProcessPoolExecutor(given.lanes, get_context("spawn")) as pool:
            running = {pool.submit(run, case, given.device): case for case in todo}
            for future in as_completed(running):
                case = running[future]
                done[case] = future.result()
                save(file, done, head)
                print(f"{case}: {100 * done[case]['accuracy']:.1f} %", flush=True)
        for verdict in verdicts(done):
            print(verdict)
            passed &= verdict.passed
    return 0 if passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Does one device with little data harm the model?")
    parser.add_argument("--data", nargs="+", default=["digits", "fashion_mnist"])
    parser.add_argument("--methods", nargs="+", default=list(SPLITS), choices=list(SPLITS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--network", action="store_true", help="one of each method, loopback")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--lanes", type=int, default=1, help="runs side by side")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "unequal_shares")
    parser.add_argument("--commit", default="", help="to record, where there is no Git")
    return parser


if __name__ == "__main__":
    sys.exit(main())
