"""How fast each device of an experiment goes on its own: pure arithmetic, nobody queues here.

Costs come from the simulator's own table, so that a prediction and a dry run differ only in the
queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    ExportModel,
    Forward,
    FullStep,
    Job,
    LoadModel,
    Merge,
    Part,
    ServerStep,
)
from fedoptima.core.messages import ENVELOPE_BYTES
from fedoptima.core.plan import Plan
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.experiments.setup import Experiment
from fedoptima.sim.costs import FlopCosts
from fedoptima.sim.dry import Sizes

_NOTHING = Payload(PayloadId(""), 0)
_ROUNDING = 1e-9  # a transfer exactly as long as an iteration fits into it


@dataclass(frozen=True, slots=True)
class DevicePace:
    """One device: seconds, and what comes of them."""

    compute: float  # its engine's work in one iteration
    iteration: float  # with the waits inside it, where there are any
    transfer: float  # of one activation batch up the link; 0 where none is sent
    exchange: float  # at the end of a round: the model up, merged, down, loaded
    round: float  # H iterations and the exchange
    turnaround: float  # mean, from a turn-on to the arrival of its batch
    samples_per_second: float
    batches_per_second: float  # of activations, as far as the device and its uplink go

    @property
    def uplink_bound(self) -> bool:
        return self.transfer > self.compute


class Pacing:
    def __init__(self, experiment: Experiment, plan: Plan) -> None:
        self._experiment = experiment
        self._devices = experiment.fleet.devices
        self._batches = experiment.batches
        self._program = experiment.method.program
        self._trains = bool(plan.server_blocks)
        self._costs = FlopCosts(
            lambda: plan, experiment.fleet.server, self._devices, self._batches
        ).seconds
        self.sizes = Sizes(plan)
        self.barrier = experiment.method.aggregation().closes_round
        self.merge = self._merge()  # seconds

    def pace(self, device: NodeId) -> DevicePace:
        spec, batch = self._devices[device], self._batches[device]
        iterations, exchange = self._iterations(device), self._exchange(device)
        transfer = (self.sizes.activation * batch + ENVELOPE_BYTES) / spec.up
        turn_on = ENVELOPE_BYTES / spec.down + 2 * spec.latency
        compute = iteration = self._compute(device)
        match self._program.kind:
            case "full":
                transfer = sent = 0.0
            case "auxiliary":
                free = exchange - self.sizes.model / spec.up  # the link carries the model first
                sent = _batches_sent(iterations, iteration, transfer + turn_on, free)
            case _:
                iteration = self._gradient_iteration(device, compute, transfer)
                sent = iterations
        whole = iterations * iteration + exchange
        # Turned on at any moment, a device waits for its next forward pass: half a gap on average,
        # where long gaps are met more often.
        gaps = (iterations - 1) * iteration**2 + (iteration + exchange) ** 2
        return DevicePace(
            compute=compute,
            iteration=iteration,
            transfer=transfer,
            exchange=exchange,
            round=whole,
            turnaround=turn_on + gaps / (2 * whole) + transfer,
            samples_per_second=iterations * batch / whole,
            batches_per_second=sent / whole,
        )

    def server_step(self, origin: NodeId) -> float:
        if not self._trains:
            return 0.0
        return self._costs(SERVER, ServerStep(origin, 0, 0, _NOTHING, 0.0))

    def _merge(self) -> float:
        devices = list(self._devices) if self.barrier else list(self._devices)[:1]
        parts = tuple(Part(device, 0.0, _NOTHING) for device in devices)
        return self._costs(SERVER, Merge(0.0, parts, ()))

    def _iterations(self, device: NodeId) -> int:
        training = self._experiment.recipe.training
        rows = len(self._experiment.shares[device])
        return training.iterations or max(1, rows // training.batch_size)

    def _compute(self, device: NodeId) -> float:
        second: Job
        match self._program.kind:
            case "full":
                return self._costs(device, FullStep(0))
            case "auxiliary":
                second = AuxiliaryStep(0)
            case _:
                second = Backward(0, 0, _NOTHING)
        return self._costs(device, Forward(0)) + self._costs(device, second)

    def _exchange(self, device: NodeId) -> float:
        spec = self._devices[device]
        return (
            self._costs(device, ExportModel())
            + self.sizes.model / spec.up
            + self.server_step(device) / 2  # models go first, but a running step is finished
            + self.merge
            + self.sizes.model / spec.down
            + 2 * spec.latency
            + self._costs(device, LoadModel(_NOTHING, 0.0))
        )

    def _gradient_iteration(self, device: NodeId, compute: float, transfer: float) -> float:
        """A pipeline: all of its stages for one part, then the longest for each further part."""
        spec, parts = self._devices[device], self._program.micro_batches
        gradient = (self.sizes.gradient * self._batches[device] + ENVELOPE_BYTES) / spec.down
        stages = (compute, transfer, self.server_step(device), gradient)
        return sum(stages) / parts + max(stages) * (parts - 1) / parts + 2 * spec.latency


def _batches_sent(iterations: int, iteration: float, sending: float, exchange: float) -> float:
    """In one round. A batch leaves when a forward pass ends, if the one before it has arrived."""
    every = max(1, ceil(sending / iteration - _ROUNDING))
    sent = ceil(iterations / every)
    rest = (iterations - (sent - 1) * every) * iteration + exchange
    return sent if sending <= rest else iterations / every  # else it delays the next round's first
