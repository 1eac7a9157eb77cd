"""A method is a choice of five policies. Everything else is shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from fedoptima.core.aggregation import AggregationPolicy
from fedoptima.core.codecs import PLAIN, Codecs
from fedoptima.core.errors import ConfigError
from fedoptima.core.flow import FlowController
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.reuse import NoReuse, ReusePolicy
from fedoptima.core.robust import RobustBarrier
from fedoptima.core.scheduler import TaskScheduler

KINDS = ("full", "auxiliary", "gradient")  # of programs


class ServerTraining(Enum):
    NONE = "none"  # the whole network is on the devices
    SHARED = "shared"  # one server-side network (FedOptima)
    PER_DEVICE = "per device"  # one copy per device (SplitFed, PiPar, OAFL)


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    program: ProgramSpec
    training: ServerTraining
    aggregation: Callable[[], AggregationPolicy]
    scheduler: Callable[[], TaskScheduler]
    flow: Callable[[], FlowController]
    auxiliary: str | int = "none"  # for the Pre-processor: the network that gives a local loss
    reuse: Callable[[], ReusePolicy] = NoReuse  # not in the paper
    own_split: bool = False  # for the Pre-processor: cut where a pipelined mini-batch is shortest
    robust: RobustBarrier = "none"  # how merges withstand hostile devices
    codecs: Codecs = PLAIN  # the form in which activations, gradients and updates are sent
    reset_optimizer: bool = False  # each round begins with a fresh one, on both sides
    # What a device's loss becomes: `local_loss(loss, weights, received)`, docs/write-a-method.md.
    local_loss: Callable[..., object] | None = field(default=None, hash=False)
    # Options that were left open, as they were chosen for the number of devices.
    resolved: Mapping[str, object] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        program = self.program
        if program.kind not in KINDS:
            raise ConfigError(
                f"{self.name}: ProgramSpec({program.kind!r}): there are {', '.join(KINDS)}"
            )
        if (program.kind == "full") is not (self.training is ServerTraining.NONE):
            raise ConfigError(
                f"{self.name}: ProgramSpec({program.kind!r}) with {self.training}: the server "
                "trains what the devices do not; 'full' goes with ServerTraining.NONE, 'auxiliary' "
                "and 'gradient' with SHARED or PER_DEVICE"
            )
        if program.overlap and program.kind == "gradient":
            raise ConfigError(
                f"{self.name}: ProgramSpec('gradient', overlap=True): its devices wait for "
                "gradients of the model that they had; leave overlap out, or make it 'auxiliary'"
            )
        if program.train_every > 1 and program.kind != "auxiliary":
            raise ConfigError(
                f"{self.name}: ProgramSpec({program.kind!r}, train_every={program.train_every}): "
                "only devices with an auxiliary network can leave batches out; leave train_every "
                "out, or make it 'auxiliary'"
            )
        fits = program.kind == "auxiliary" and self.training is ServerTraining.SHARED
        if self.reuse is not NoReuse and not fits:
            raise ConfigError(
                f"{self.name}: reuse with ProgramSpec({program.kind!r}) and {self.training}: only "
                "one server side for all devices, which do not wait for it, can train again; leave "
                "reuse out, or make them 'auxiliary' and ServerTraining.SHARED"
            )

    @property
    def has_bases(self) -> bool:
        """The server keeps the model that a device was sent: its update is compared with it, or is
        in part a change of it."""
        changes = self.codecs.updates != "float32" and not self.program.delta
        return changes or self.robust != "none"
