"""Plays many scripts, and says which laws were broken by which seeds."""

from __future__ import annotations

import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context

from fedoptima.core.errors import ConfigError
from fedoptima.core.method import Method
from fedoptima.fuzzing.cores import Told
from fedoptima.fuzzing.script import Kind, Script, draw
from fedoptima.fuzzing.world import World
from fedoptima.methods.registry import COMPARED, Builder, find_method
from fedoptima.methods.stored_classes import make_storable
from fedoptima.named_code import AllowedCode
from fedoptima.testing.law_broken import LawBroken

CHUNK = 100  # seeds that a worker plays at a time
_DEVICES = 3


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    method: str
    law: str
    text: str

    def __str__(self) -> str:
        return f"seed {self.seed} ({self.method}) breaks the law of {self.law}: {self.text}"


@dataclass(slots=True)
class Tally:
    """What was tried, and what came of it."""

    seeds: int = 0
    events: int = 0
    runs: Counter[str] = field(default_factory=Counter)  # by method
    tries: Counter[str] = field(default_factory=Counter)  # by kind of fault
    survived: Counter[str] = field(default_factory=Counter)
    worst: dict[str, float] = field(default_factory=dict)  # seconds until it trained again
    merges_lost: int = 0
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.runs += other.runs
        self.tries += other.tries
        self.survived += other.survived
        for kind, seconds in other.worst.items():
            self.worst[kind] = max(self.worst.get(kind, 0.0), seconds)
        self.merges_lost = max(self.merges_lost, other.merges_lost)
        self.failures += other.failures

    def plain(self) -> dict[str, object]:
        """For JSON."""
        return {
            "seeds": self.seeds,
            "events": self.events,
            "runs": dict(self.runs),
            "faults": {
                kind: {
                    "tries": self.tries[kind],
                    "survived": self.survived[kind],
                    "worst_seconds": self.worst.get(kind),
                }
                for kind in Kind
            },
            "merges_lost": self.merges_lost,
            "failures": [
                {"seed": f.seed, "method": f.method, "law": f.law, "text": f.text}
                for f in self.failures
            ],
        }


def find_methods(names: Sequence[str], code: AllowedCode) -> dict[str, Builder]:
    """All of ours, if none is named."""
    found = {name: find_method(name, code) for name in names or COMPARED}
    for name, build in found.items():
        method = build(_DEVICES)
        if not isinstance(method, Method):
            raise ConfigError(f"--method {name}: must return a Method, and returned {method!r}")
        make_storable(build, (method.flow(), method.aggregation(), method.scheduler()))
    return found


def play(script: Script, told: Told | None = None) -> tuple[World, LawBroken | None]:
    world = World(script, told) if told is not None else World(script)
    try:
        world.run()
    except LawBroken as broken:
        return world, broken
    except AssertionError as error:  # a toy engine's
        return world, LawBroken("engines", str(error) or _place(error))
    except Exception as error:  # whatever it is, a run must not end with it
        return world, LawBroken("invariants", f"{type(error).__name__}: {error} ({_place(error)})")
    return world, None


def _place(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"


def play_seeds(seeds: Iterable[int], methods: Mapping[str, Builder]) -> Tally:
    tally = Tally()
    for seed in seeds:
        script = draw(seed, methods)
        world, broken = play(script)
        tries = Counter({str(kind): count for kind, count in world.tries.items()})
        one = Tally(
            1,
            world.events,
            Counter({script.method: 1}),
            tries,
            Counter() if broken else tries,
            {str(kind): seconds for kind, seconds in world.worst.items()},
            world.merges_lost,
        )
        if broken is not None:
            one.failures.append(Failure(seed, script.method, broken.law, broken.text))
        tally.add(one)
    return tally


def _ignore_ctrl_c() -> None:
    """A terminal sends it to all processes; this one's parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _in_worker(names: Sequence[str], code: AllowedCode, seeds: range) -> Tally:
    return play_seeds(seeds, find_methods(names, code))


def campaign(
    first: int,
    count: int,
    names: Sequence[str],
    code: AllowedCode,
    *,
    jobs: int = 1,
    progress: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Play ``count`` seeds from ``first`` on, in ``jobs`` processes."""
    tally = Tally()
    for part in _parts(first, count, names, code, jobs):
        tally.add(part)
        progress(tally)
    tally.failures.sort(key=lambda failure: failure.seed)
    return tally


def _parts(
    first: int, count: int, names: Sequence[str], code: AllowedCode, jobs: int
) -> Iterator[Tally]:
    end = first + count
    chunks = [range(at, min(at + CHUNK, end)) for at in range(first, end, CHUNK)]
    find_methods(names, code)  # what is wrong with them is said here
    with ExitStack() as stack:
        spread: Callable[..., Iterator[Tally]] = map
        if jobs > 1:
            # Not forked: what threads of this process hold would be held there for ever.
            pool = ProcessPoolExecutor(jobs, get_context("spawn"), _ignore_ctrl_c)
            spread = stack.enter_context(pool).map
        yield from spread(partial(_in_worker, names, code), chunks)


def smallest(script: Script, law: str) -> Script:
    """The script without the faults that are not needed to break this law."""
    position = 0
    while position < len(script.faults):
        fewer = (*script.faults[:position], *script.faults[position + 1 :])
        tried = replace(script, faults=fewer)
        _, broken = play(tried)
        if broken is not None and broken.law == law:
            script = tried
        else:
            position += 1
    return script
