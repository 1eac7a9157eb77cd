"""What goes wrong in a run, drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

DEVICES = ("pi-1", "pi-2", "pi-3")
METHODS = ("fedoptima", "fl", "fedasync", "fedbuff", "splitfed", "pipar", "oafl")


class Kind(StrEnum):
    DEVICE_KILLED = "device killed"
    DEVICE_STOPPED = "device stopped, then continued"
    SERVER_KILLED = "server killed"
    SERVER_STOPPED = "server stopped, then continued"
    CHECKPOINT_DAMAGED = "server killed, newest checkpoint damaged"
    CONNECTION_CUT = "connection cut"
    CONNECTIONS_RESET = "every connection reset for a while"
    BYTES_DELAYED = "everything delayed"
    BYTES_DROPPED = "everything dropped, then a reset"
    HALF_OPEN = "half-open: dropped, and nobody is told"
    SERVER_NOT_TOLD = "half-open: the device's end closed"
    SERVER_DISK_FULL = "server's disk full, then room"
    KILLED_DISK_FULL = "server killed while its disk is full"
    DEVICE_DISK_FULL = "devices' disk full, then room"


ON_DISKS = (Kind.SERVER_DISK_FULL, Kind.KILLED_DISK_FULL, Kind.DEVICE_DISK_FULL)
# All devices are affected by these; they are never played two at a time.
OF_ALL = (
    *(Kind.SERVER_KILLED, Kind.SERVER_STOPPED, Kind.CHECKPOINT_DAMAGED),
    *(Kind.SERVER_DISK_FULL, Kind.KILLED_DISK_FULL, Kind.DEVICE_DISK_FULL),
)
OF_ONE = tuple(kind for kind in Kind if kind not in OF_ALL)
# Keepalive takes half a minute to notice it: once in a seed.
_LONG = Kind.HALF_OPEN
_STEPS = 5  # of a run


@dataclass(frozen=True)
class Fault:
    kind: Kind
    devices: tuple[str, ...]  # that notice it
    seconds: float  # for which it lasts; where a process is killed, until the next one starts
    choice: int  # among the ways to damage a checkpoint

    def __str__(self) -> str:
        whom = "" if self.kind in OF_ALL else f" ({self.devices[0]})"
        return f"{self.kind}{whom}, {self.seconds:.1f} s"


@dataclass(frozen=True)
class Script:
    """A run of one method; the faults of a step happen at the same time."""

    method: str
    seed: int
    steps: tuple[tuple[Fault, ...], ...]


def scripts(
    seed: int, methods: Sequence[str] = METHODS, *, disks: bool = True, steps: int = _STEPS
) -> list[Script]:
    """One for each method. Every kind of fault is in them, where there are steps enough."""
    random = Random(f"chaos/{seed}")
    kinds = [kind for kind in Kind if disks or kind not in ON_DISKS]
    often = [kind for kind in kinds if kind is not _LONG]
    deck = random.sample(kinds, len(kinds))
    while len(deck) < len(methods) * steps:
        deck += random.sample(often, len(often))
    cut = iter(deck)
    return [
        Script(method, seed, tuple(_step(next(cut), random) for _ in range(steps)))
        for method in methods
    ]


def _step(kind: Kind, random: Random) -> tuple[Fault, ...]:
    return tuple(_faults(kind, random))


def _faults(kind: Kind, random: Random) -> Iterator[Fault]:
    first, second, _ = random.sample(DEVICES, 3)
    yield Fault(
        *(kind, DEVICES if kind in OF_ALL else (first,)),
        *(round(random.uniform(0.2, 4.0), 1), random.randrange(1000)),
    )
    if random.random() < 0.4 and kind is not _LONG:  # something else on another device
        other = random.choice([kind for kind in OF_ONE if kind is not _LONG])
        yield Fault(other, (second,), round(random.uniform(0.2, 4.0), 1), random.randrange(1000))
