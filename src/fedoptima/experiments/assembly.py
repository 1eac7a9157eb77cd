"""A simulation put together from its parts. Without torch, which a dry run may do without."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fedoptima.config.schema import Recipe
from fedoptima.core.cuts import best_option, options_of
from fedoptima.core.device import DeviceCore
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.plan import Plan
from fedoptima.core.ranges import unusual_speeds
from fedoptima.core.server import ServerCore
from fedoptima.core.types import SERVER, NodeId
from fedoptima.experiments.describe import Expected, describe
from fedoptima.experiments.method_setup import server_settings
from fedoptima.experiments.result import LastState
from fedoptima.preprocess.job_costs import JobCosts
from fedoptima.preprocess.split import DeviceSpeed
from fedoptima.sim.costs import NodeCosts
from fedoptima.sim.driver import Simulation
from fedoptima.sim.dry import LABEL_BYTES, Dry, DryDeviceEngine, DryServerEngine, Planner
from fedoptima.sim.executor import Executor
from fedoptima.sim.fleet import Fleet
from fedoptima.sim.network import Link, ServerLink
from fedoptima.sim.state import SimDevice
from fedoptima.trace.description import Mode, RunDescription
from fedoptima.trace.record import RecordObserver

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedoptima.engine.checkpoint import SavedEngine


class SimulatedEngine(LastState, Protocol):
    """The server's, with what a checkpoint holds of it."""

    def save(self) -> tuple[dict[str, object], dict[str, Tensor]]: ...
    def restore(self, state: Mapping[str, object], tensors: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class Assembly:
    """A simulation with its engines, the server's under its own name."""

    simulation: Simulation
    server_engine: SimulatedEngine
    device_engines: Mapping[NodeId, SavedEngine]
    executor: Executor

    @property
    def engines(self) -> dict[NodeId, SavedEngine]:
        return {SERVER: self.server_engine, **self.device_engines}


class Simulated(ABC):
    """A simulated run that is described and not yet started."""

    recipe: Recipe
    method: Method
    fleet: Fleet

    @property
    @abstractmethod
    def samples(self) -> Mapping[NodeId, int]:
        """That each device holds."""

    @property
    @abstractmethod
    def compute(self) -> torch.device | str:
        """Where tensors are."""

    @abstractmethod
    def assemble(self, observers: Sequence[RecordObserver], *, dry: bool) -> Assembly: ...

    @property
    @abstractmethod
    def planner(self) -> Planner: ...

    @abstractmethod
    def test_accuracy(self, weights: Mapping[str, Tensor]) -> float | None: ...

    @property
    def batches(self) -> dict[NodeId, int]:
        """Samples in each device's batch: all it has, if that is less than a batch."""
        size = self.recipe.training.batch_size
        return {device: min(size, held) for device, held in self.samples.items()}

    @property
    def unusual(self) -> Mapping[NodeId, str]:
        """The devices that the plan leaves out, and why."""
        return unusual_speeds(self._speeds)

    @property
    def _speeds(self) -> dict[NodeId, DeviceSpeed]:
        devices = self.fleet.devices.items()
        return {name: DeviceSpeed(spec.flops_per_second, spec.up) for name, spec in devices}

    def plan(self) -> Plan:
        """The plan for the devices of the fleet, as the server makes it."""
        unusual = self.unusual
        return self.planner.plan([s for name, s in self._speeds.items() if name not in unusual])

    def cuts(self, plan: Plan) -> dict[NodeId, int]:
        """Of the devices that have cuts of their own."""
        options = options_of(plan)
        found = self._speeds.items() if options else ()
        return {
            name: best_option(options, speed.flops_per_second, speed.bytes_per_second).split
            for name, speed in found
        }

    def describe(self, *, dry: bool) -> RunDescription:
        material = {} if dry else self.material
        return describe(
            self.recipe, self.method, Mode.SIMULATED, self.expected, dry=dry, material=material
        )

    @property
    def material(self) -> Mapping[str, Mapping[str, Any]]:
        """What tells its model and data from others, if it has any."""
        return {}

    @property
    def expected(self) -> Expected:
        return Expected(len(self.fleet.devices), max(1, self.fleet.present_at_start))


def assemble_dry(
    experiment: Simulated,
    planner: Planner,
    observers: Sequence[RecordObserver],
    label_bytes: int = LABEL_BYTES,
) -> Assembly:
    batches = experiment.batches
    server = DryServerEngine(planner, batches, label_bytes)
    devices = {d: DryDeviceEngine(server, batches[d]) for d in experiment.fleet.devices}
    executor = Dry(server, devices)
    simulation = build_simulation(experiment, executor, lambda: server.plan, observers)
    return Assembly(simulation, server, devices, executor)


def build_simulation(
    experiment: Simulated,
    executor: Executor,
    plan: Callable[[], Plan | None],
    observers: Sequence[RecordObserver],
) -> Simulation:
    """``plan``: the server's; it is there when the first job is to be paid for."""
    fleet, samples, server = experiment.fleet, experiment.samples, experiment.fleet.server
    devices = {
        device: SimDevice(
            DeviceCore(
                samples=samples[device],
                flops_per_second=spec.flops_per_second,
                bytes_per_second=spec.up,
            ),
            up=Link(spec.up, spec.latency, fleet.packing(device)),
            down=Link(spec.down, spec.latency, fleet.packing(device)),
        )
        for device, spec in fleet.devices.items()
    }

    def costs(cut: int) -> JobCosts:
        found, training = plan(), experiment.recipe.training
        assert found is not None
        return JobCosts(
            found.at(cut),
            copies=experiment.method.training is ServerTraining.PER_DEVICE,
            device_state=training.device.state_tensors,
            server_state=training.server.state_tensors,
        )

    def cut(device: NodeId) -> int:
        return simulation.devices[device].machine.cut

    settings = server_settings(experiment.recipe, experiment.expected.at_start)
    simulation = Simulation(
        ServerCore(experiment.method, settings),
        devices,
        executor=executor,
        costs=NodeCosts(
            *(costs, server, fleet.devices, experiment.batches),
            cut=cut if experiment.recipe.split.per_device else None,
        ),
        changes=fleet.changes,
        churn=fleet.churn,
        late={device: spec.joins_at for device, spec in fleet.devices.items()},
        observers=observers,
    )
    if server.up:
        simulation.server.up, simulation.server.down = (
            ServerLink(server.up),
            ServerLink(server.down),
        )
    return simulation
