"""From a seed to a script: a fleet, a method, and what goes wrong when."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fedoptima.core.errors import ConfigError
from fedoptima.core.method import Method
from fedoptima.core.seeding import derive
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId
from fedoptima.methods.registry import METHODS, Builder, options_of

NEVER = StopRule(rounds=10**9)  # the script ends the run


class Kind(StrEnum):
    """What goes wrong."""

    CUT = "connection cut"
    HALF_OPEN = "half-open connection"
    DELAY = "messages held up"
    NOTHING = "bandwidth to nothing"
    ECHO = "old messages come again"
    HANG = "device hangs"
    KILL = "device killed"
    CHURN = "constant churn"
    JOB = "device's job fails"
    SERVER_JOB = "server's job fails"
    GARBAGE = "device sends nonsense"
    CRASH = "server killed"
    DAMAGED = "server killed, newest checkpoint damaged"
    DISK = "server's disk full"


OF_SERVER = (Kind.CRASH, Kind.DAMAGED, Kind.DISK)


@dataclass(frozen=True, slots=True)
class Fault:
    """``lasts``: until whatever it is has been put right. ``unnoticed``: seconds until the server
    and the device find out by themselves, where that is a matter of time."""

    at: float
    kind: Kind
    node: NodeId
    lasts: float = 0.0
    unnoticed: tuple[float, float] = (0.0, 0.0)
    variant: str = ""

    @property
    def over(self) -> float:
        return self.at + self.lasts + max(self.unnoticed)

    def __str__(self) -> str:
        variant = f" ({self.variant})" if self.variant else ""
        return f"{self.kind}{variant}, for {self.lasts:g} s"


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    name: NodeId
    speed: float
    bytes_per_second: float
    latency: float
    samples: int
    joins_at: float


@dataclass(frozen=True, slots=True)
class Script:
    seed: int
    method: str
    build: Builder
    options: Mapping[str, object]
    devices: tuple[DeviceSpec, ...]
    faults: tuple[Fault, ...]
    stop: StopRule = NEVER
    server_speed: float = 4.0
    iterations: int | None = 2
    gather: int = 1
    checkpoint_every: int = 10  # of the server's events
    checkpoint_takes: float = 0.0  # seconds to the disk
    patience: float = 5.0  # seconds that the server waits for devices

    def make_method(self) -> Method:
        return self.build(len(self.devices), **self.options)

    @property
    def calm_from(self) -> float:
        """Nothing goes wrong any more."""
        ends = [fault.over for fault in self.faults]
        return max([0.0, *ends, *(device.joins_at for device in self.devices)]) + 5.0


# ---- drawing -------------------------------------------------------------------------------------

# Values for options of our own methods; each is left as it is half of the time.
_OPTIONS: Mapping[str, Sequence[object]] = {
    "activation_cap": (1, 2, 3, 5, 9),
    "credit_timeout": (0.5, 3.0, 30.0),
    "max_delay": (0, 1, 3, 100),
    "scheduler": ("fifo",),
    "auxiliary": ("none",),
    "on_leave": ("drop", "keep", "wait"),
    "barrier_timeout": (0.5, 5.0, 25.0),
    "participation": (0.5,),
    "buffer": (1, 2, 3, 5),
    "micro_batches": (1, 2, 3, 4),
    "train_every": (2, 4),
    "overlap": (True,),
    "reuse": (
        {"batches": 3, "uses": 1},
        {"batches": 2, "uses": 3, "on_leave": "forget"},
        {"batches": 8, "uses": 2, "max_age": 1},
        {"on_leave": "forget"},
    ),
}
_WITH_DEVICE = (
    *(Kind.CUT, Kind.CUT, Kind.HALF_OPEN, Kind.HALF_OPEN, Kind.DELAY, Kind.NOTHING, Kind.ECHO),
    *(Kind.HANG, Kind.KILL, Kind.KILL, Kind.JOB, Kind.SERVER_JOB, Kind.GARBAGE),
)


def draw(seed: int, methods: Mapping[str, Builder]) -> Script:
    """The methods take turns."""
    name = list(methods)[seed % len(methods)]
    rng = random.Random(derive(seed, "fuzz", name))
    devices = _fleet(rng)
    horizon = rng.choice((10.0, 20.0, 40.0))
    stop = NEVER
    if rng.random() < 0.2:
        stop = rng.choice(
            (
                StopRule(rounds=rng.randint(1, 4)),
                StopRule(epochs=rng.choice((0.5, 1.0, 2.0))),
                StopRule(hours=rng.choice((5, 20)) / 3600),
            )
        )
    return Script(
        seed=seed,
        method=name,
        build=methods[name],
        options=_options(rng, name, methods[name]),
        devices=devices,
        faults=_faults(rng, devices, horizon),
        stop=stop,
        server_speed=rng.choice((2.0, 8.0, 64.0)),
        iterations=rng.choice((None, 1, 2, 3)),
        gather=rng.randint(1, len(devices)),
        checkpoint_takes=rng.choice((0.0, 0.25, 1.0)),
        checkpoint_every=rng.choice((1, 4, 10, 30)),
    )


def _options(rng: random.Random, name: str, build: Builder) -> dict[str, object]:
    """Of a user's method nothing is known: it is taken as it is."""
    if METHODS.get(name) is not build:
        return {}
    drawn = {key: rng.choice(values) for key, values in _OPTIONS.items()}  # all: others stay alike
    left = {key: rng.random() < (0.8 if key == "auxiliary" else 0.5) for key in _OPTIONS}
    defaults, taken = options_of(build), dict[str, object]()
    for key, value in drawn.items():
        if key in defaults and not left[key]:
            if value == defaults[key]:  # which it has half of the time anyway
                value = next(other for other in _OPTIONS[key] if other != value)
            if _is_possible(build, {**taken, key: value}):
                taken[key] = value
    return taken


def _is_possible(build: Builder, options: Mapping[str, object]) -> bool:
    try:
        build(1, **options)
    except ConfigError:
        return False
    return True


def _fleet(rng: random.Random) -> tuple[DeviceSpec, ...]:
    count = rng.choice((1, 2, 2, 3, 3, 4, 6))
    alike = rng.random() < 0.6
    return tuple(
        DeviceSpec(
            NodeId(f"d{number}"),
            speed=rng.choice((1.0, 2.0, 4.0, 8.0, 16.0)),
            bytes_per_second=rng.choice((1000.0, 4000.0, 1e5, 1e5)),
            latency=rng.choice((0.0, 0.0, 0.25, 1.0)),
            samples=8 if alike else rng.randint(1, 12),
            joins_at=rng.choice((0.0, 0.0, 0.0, rng.randint(0, 40) / 4)),
        )
        for number in range(count)
    )


def _faults(rng: random.Random, devices: Sequence[DeviceSpec], horizon: float) -> tuple[Fault, ...]:
    names = [device.name for device in devices]
    # A coarse grid, so that things often happen at the same instant.
    grid = rng.random() < 0.7

    def when() -> float:
        at = rng.uniform(0, horizon)
        return round(4 * at) / 4 if grid else at

    failing = rng.choice(names)  # a run whose server fails with every device ends, as it should
    faults = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.choice(_WITH_DEVICE)
        name = failing if kind is Kind.SERVER_JOB else rng.choice(names)
        faults.append(_fault(rng, kind, name, when()))
    if rng.random() < 0.15:
        faults += _churn(rng, names, horizon)
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 4)):
            kind = rng.choice((Kind.CRASH, Kind.CRASH, Kind.DAMAGED, Kind.DISK))
            faults.append(_fault(rng, kind, SERVER, when()))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _fault(rng: random.Random, kind: Kind, node: NodeId, at: float) -> Fault:
    lasts = rng.choice((0.0, 0.5, 2.0, 6.0))
    soon = (rng.choice((0.0, 0.25)), rng.choice((0.0, 0.25)))
    late = (rng.choice((0.0, 1.0, 5.0, 12.0)), rng.choice((0.0, 1.0, 5.0, 12.0)))
    match kind:
        case Kind.CUT:
            return Fault(at, kind, node, lasts, soon)
        case Kind.HALF_OPEN:
            variant = rng.choice(("up", "down", "both", "welcome lost"))
            return Fault(at, kind, node, 0.0, late, variant)
        case Kind.DELAY:
            return Fault(at, kind, node, rng.choice((1.0, 4.0)), variant=rng.choice(("up", "down")))
        case Kind.NOTHING:
            return Fault(at, kind, node, rng.choice((2.0, 8.0)))
        case Kind.HANG:
            return Fault(
                at,
                kind,
                node,
                rng.choice((1.0, 6.0, 20.0)),
                (rng.choice((3.0, 10.0)), 0.0),
                rng.choice(("goes on", "killed")),
            )
        case Kind.KILL:
            state = rng.choice(("", "", "state lost"))
            return Fault(at, kind, node, lasts, (rng.choice((0.0, 0.0, 1.0, 8.0)), 0.0), state)
        case Kind.CRASH | Kind.DAMAGED:
            variant = rng.choice(("", "before the effects", "half of the effects done"))
            return Fault(at, kind, node, lasts, (0.0, rng.choice((0.0, 0.5, 3.0))), variant)
    return Fault(at, kind, node, lasts)


def _churn(rng: random.Random, names: Sequence[NodeId], horizon: float) -> list[Fault]:
    """As in the paper's unstable environment: in every interval each device may go."""
    every, faults, at = rng.choice((1.0, 3.0)), [], 0.0
    while (at := at + every) < horizon:
        for name in names:
            if rng.random() < 0.4:
                faults.append(Fault(at, Kind.CHURN, name, rng.choice((0.5, 1.0, 2.0)) * every))
    return faults
