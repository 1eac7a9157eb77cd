"""Runs the sides of a comparison in turn, each in a process of its own, and takes their figures.

A side is a module that is given one JSON argument (`Asked`), does the work, and says how long it
took. It imports and loads the data before its clock starts. Times and memory are taken in separate
runs, since looking at the memory of a process costs time.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.workloads import Workload

ROOT = Path(__file__).parent.parent
_LOOK_EVERY = 0.02  # seconds between two looks at the memory
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Asked:
    workload: Workload
    data: str  # the file with the images
    answer: str  # the file for the answer; the weights go beside it
    workers: int

    @classmethod
    def read(cls) -> Asked:
        given = json.loads(sys.argv[1])
        return cls(**{**given, "workload": Workload(**given["workload"])})

    def reply(self, seconds: float, weights: Mapping[str, Tensor], **more: object) -> None:
        torch.save({name: t.detach() for name, t in weights.items()}, f"{self.answer}.pt")
        Path(self.answer).write_text(json.dumps({"seconds": seconds, **more}))


def processor_seconds() -> float:
    """Of this process and of those that it has started and that have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(own.ru_utime + own.ru_stime for own in used)


@dataclass(frozen=True)
class Side:
    name: str
    module: str
    workers: int = 2
    python: str = sys.executable
    one_thread: bool = True  # set from outside; our own side has to see to it by itself
    same_weights: bool = True  # as the other sides, which is checked


@dataclass
class Figures:
    seconds: list[float] = field(default_factory=list)
    more: list[dict[str, object]] = field(default_factory=list)
    peak_mb: float = 0.0  # 0: not asked for

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class Comparison:
    """The sides of one workload."""

    def __init__(self, workload: Workload, sides: Sequence[Side], data: Path) -> None:
        self.workload = workload
        self._sides = sides
        self._data = data
        self.figures = {side.name: Figures() for side in sides}

    def run(self, rounds: int) -> None:
        """Each side once a round, in turn; every other round the other way round."""
        for number in range(rounds):
            weights: dict[str, dict[str, Tensor]] = {}
            for side in self._sides[:: -1 if number % 2 else 1]:
                answer, weights[side.name] = self._run(side)
                print(f"  {side.name}: {answer['seconds']:.2f} s", file=sys.stderr, flush=True)
                self.figures[side.name].seconds.append(answer.pop("seconds"))
                self.figures[side.name].more.append(answer)
            self._check(weights)

    def weigh(self) -> None:
        """The peak memory of each side's processes together."""
        weights: dict[str, dict[str, Tensor]] = {}
        for side in self._sides:
            looks: list[float] = []
            _, weights[side.name] = self._run(side, looks)
            self.figures[side.name].peak_mb = max(looks)
        self._check(weights)

    def ratios(self, one: str, other: str) -> list[float]:
        pairs = zip(self.figures[one].seconds, self.figures[other].seconds, strict=True)
        return [ours / theirs for ours, theirs in pairs]

    def _check(self, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
        check_same({s.name: weights[s.name] for s in self._sides if s.same_weights})

    def _run(
        self, side: Side, looks: list[float] | None = None
    ) -> tuple[dict[str, float], dict[str, Tensor]]:
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder, "answer.json")
            asked = Asked(self.workload, str(self._data), str(answer), side.workers)
            with Path(folder, "log").open("w+") as log:
                process = subprocess.Popen(
                    [side.python, "-m", side.module, json.dumps(asdict(asked))],
                    cwd=ROOT,
                    env=_environment(side),
                    stdout=log,
                    stderr=log,
                )
                while looks is not None and process.poll() is None:
                    looks.append(tree_mb(process.pid))
                    time.sleep(_LOOK_EVERY)
                if process.wait() or not answer.exists():
                    log.seek(0)
                    raise SystemExit(f"{side.name} failed:\n{log.read()[-4000:]}")
            return json.loads(answer.read_text()), torch.load(f"{answer}.pt")


def _environment(side: Side) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key not in _THREADS}
    paths = [str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if side.one_thread:
        environment |= dict.fromkeys(_THREADS, "1")
    return environment


def check_same(sides: Mapping[str, Mapping[str, Tensor]]) -> None:
    """All sides have trained the same model, up to the order in which sums were taken."""
    first = next(iter(sides), "")
    expected = sides.get(first, {})
    for name, weights in sides.items():
        for key in weights.keys() & expected.keys():
            ours, theirs = expected[key].double(), weights[key].double()
            # Of the whole tensor: on real images a rounding error grows to a thousandth in single
            # numbers within 30 steps, and the floor with one process differs as much from two.
            apart = float((ours - theirs).norm())
            if not apart <= 1e-2 * float(ours.norm()) + 1e-3 * ours.numel() ** 0.5:
                raise SystemExit(f"{first} and {name} did other work: {key} differs by {apart:.2g}")


def tree_mb(pid: int) -> float:
    """The memory of a process and its descendants; a page that several share counts once (PSS)."""
    return sum(_proportional_kb(process) for process in _tree(pid)) / 1024


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it has ended
            continue
        for child in children:
            yield from _tree(int(child))


def _proportional_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


@contextmanager
def one_core_in_use() -> Iterator[None]:
    """Another process computes all the time, on one core."""
    program = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    busy = subprocess.Popen([sys.executable, "-c", program])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()
