"""From a recipe to everything a run needs: data, model, method, fleet, engines, cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, ValidationError, validate_call
from torch import nn
from torch.nn.functional import cross_entropy

from fedoptima.config.schema import Recipe
from fedoptima.core.device import DeviceCore
from fedoptima.core.errors import ConfigError
from fedoptima.core.method import Method
from fedoptima.core.plan import Plan
from fedoptima.core.ranges import unusual_speeds
from fedoptima.core.seeding import derive
from fedoptima.core.server import ServerCore
from fedoptima.core.settings import ServerSettings
from fedoptima.core.types import SERVER, NodeId
from fedoptima.data.dataset import Dataset
from fedoptima.data.layouts import ReadingProgress, quiet
from fedoptima.data.partition import by_file, dirichlet, hold_out, iid
from fedoptima.data.registry import load_dataset, load_or_stand_in
from fedoptima.engine.checkpoint import SavedEngine
from fedoptima.engine.compute_device import CPU, compute_device
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.graphs.device import GraphedDevice
from fedoptima.engine.graphs.server import GraphedServer
from fedoptima.engine.server import ServerEngine
from fedoptima.engine.task import Task
from fedoptima.experiments.describe import Expected, describe
from fedoptima.experiments.device_engines import BuildEngine, device_engine, device_loader
from fedoptima.experiments.given import Given
from fedoptima.methods.registry import find_method, method_options
from fedoptima.models.registry import build_model
from fedoptima.named_code import AllowedCode
from fedoptima.preprocess.plan import PlanSettings
from fedoptima.preprocess.split import DeviceSpeed
from fedoptima.sim.costs import FlopCosts
from fedoptima.sim.driver import Simulation
from fedoptima.sim.dry import Dry, DryDeviceEngine, DryServerEngine
from fedoptima.sim.executor import Executor, Inline, OnStreams
from fedoptima.sim.fleet import Fleet, build_fleet
from fedoptima.sim.network import Link
from fedoptima.sim.state import SimDevice
from fedoptima.trace.description import Mode, RunDescription
from fedoptima.trace.record import Record


@dataclass(frozen=True)
class RunSetup:
    """What every node of a run is built from, not yet started."""

    recipe: Recipe
    method: Method
    task: Task


def prepare_run(
    recipe: Recipe,
    devices: int,
    given: Given | None = None,
    progress: ReadingProgress = quiet,
    *,
    dry: bool = False,
) -> RunSetup:
    """The steps that a simulation, a server and a device share.

    ``devices``: how many the method's defaults are made for. ``dry``: nothing is computed, so
    neither a GPU nor the data set itself is needed, only its facts.
    """
    given = given or Given()
    compute = CPU if dry else compute_device(recipe.device, recipe.training.precision)
    recipe = recipe.model_copy(update={"threads": recipe.threads or torch.get_num_threads()})
    method = build_method(recipe, devices)
    load = load_or_stand_in if dry else load_dataset
    dataset = given.dataset or load(
        recipe.data.name,
        given.code,
        directory=recipe.data.directory,
        progress=progress,
        **recipe.data.options,
    )
    if not dry:
        dataset = dataset.cached() if recipe.data.cache else dataset
        dataset = dataset.with_workers(recipe.data.workers)
    validation = dataset.test
    if recipe.data.validation != "test":
        dataset, validation = hold_out(dataset, recipe.data.validation, recipe.seed)
    task = Task(
        model=given.model or _build_model(recipe, dataset, given.code),
        dataset=dataset.to(compute),
        validation=validation.to(compute),
        planning=PlanSettings(
            training=method.training,
            batch_size=recipe.training.batch_size,
            classes=dataset.classes,
            seed=recipe.seed,
            auxiliary=method.auxiliary,
            split=recipe.split.at,
            objective=recipe.split.objective,
        ),
        device_optimizer=recipe.training.device,
        server_optimizer=recipe.training.server,
        schedule=recipe.training.schedule,
        compute=compute,
        loss=given.loss or cross_entropy,
        evaluation_batch=recipe.training.evaluation_batch,
        precision=recipe.training.precision,
        robust=method.robust,
    )
    return RunSetup(recipe, method, task)


@dataclass(frozen=True)
class Experiment(RunSetup):
    """All parts of a simulated run, not yet started."""

    fleet: Fleet
    shares: Mapping[NodeId, NDArray[np.int64]]  # the rows of the training data each device holds

    @property
    def batches(self) -> dict[NodeId, int]:
        """Samples in each device's batch: all it has, if that is less than a batch."""
        size = self.recipe.training.batch_size
        return {device: min(size, len(rows)) for device, rows in self.shares.items()}

    def describe(self, *, dry: bool) -> RunDescription:
        return describe(self.recipe, self.method, Mode.SIMULATED, self.expected, dry=dry)

    @property
    def expected(self) -> Expected:
        return Expected(len(self.fleet.devices), max(1, self.fleet.present_at_start))

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
        return self.task.plan([s for name, s in self._speeds.items() if name not in unusual])


def prepare(
    recipe: Recipe,
    given: Given | None = None,
    progress: ReadingProgress = quiet,
    *,
    dry: bool = False,
) -> Experiment:
    fleet = build_fleet(recipe.fleet, recipe.seed)
    run = prepare_run(recipe, len(fleet.devices), given, progress, dry=dry)
    shares = share_out(run.task.dataset, recipe, list(fleet.devices))
    return Experiment(run.recipe, run.method, run.task, fleet, shares)


def build_method(recipe: Recipe, devices: int) -> Method:
    """The method with its options checked against what it takes."""
    name, options = recipe.method.name, recipe.method.options
    build = find_method(name)
    known = method_options(name)
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"method.{option}: {name} has no such option; {hint}"
                f"it has {', '.join(known) or 'none'}"
            )
    try:
        method: Method = validate_call(config=ConfigDict(strict=True))(build)(devices, **options)
        for policy in (method.flow, method.aggregation):
            policy()  # they check their settings, which should happen before a run is set up
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"method.{key} = {first['input']!r}: {first['msg'].lower()}") from error
    except ConfigError as error:
        if str(error).startswith("method."):
            raise
        given = ", ".join(f"method.{option} = {value!r}" for option, value in options.items())
        raise ConfigError(f"{given}: {error}") from error
    parts, batch = method.program.micro_batches, recipe.training.batch_size
    if parts > batch:
        raise ConfigError(
            f"method.micro_batches = {parts}: a mini-batch has training.batch_size = {batch} "
            f"samples and cannot be cut into more parts; give at most {batch}"
        )
    return method


def share_out(
    dataset: Dataset, recipe: Recipe, devices: list[NodeId]
) -> dict[NodeId, NDArray[np.int64]]:
    """The rows of the training data that each device holds."""
    config = recipe.data.partition
    seed = derive(recipe.seed, "partition")
    if config.kind == "file" and config.file is not None:
        parts = by_file(config.file, devices=devices, samples=len(dataset.train))
    elif config.kind == "iid":
        parts = iid(len(dataset.train), len(devices), seed=seed)
    else:
        parts = dirichlet(dataset.train.labels, len(devices), alpha=config.alpha, seed=seed)
    return dict(zip(devices, parts, strict=True))


def _build_model(recipe: Recipe, dataset: Dataset, code: AllowedCode) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(recipe.seed, "model"))
        return build_model(recipe.model.name, dataset.facts, recipe.model.options, code)


# ---- the simulation --------------------------------------------------------------------------


@dataclass(frozen=True)
class Assembly:
    """A simulation with its engines, the server's under its own name."""

    simulation: Simulation
    server_engine: ServerEngine | DryServerEngine
    device_engines: Mapping[NodeId, DeviceEngine | DryDeviceEngine]

    @property
    def engines(self) -> dict[NodeId, SavedEngine]:
        return {SERVER: self.server_engine, **self.device_engines}


def assemble(
    experiment: Experiment,
    observers: list[Callable[[Record], None]],
    *,
    dry: bool = False,
    build_engine: BuildEngine | None = None,
    graphs: bool = True,
) -> Assembly:
    """``build_engine``: makes a device's engine; `device_engine` by default.

    ``graphs``: on a GPU, record training steps; without, they are the reference.
    """
    recipe, task, fleet = experiment.recipe, experiment.task, experiment.fleet
    batches = experiment.batches
    server_engine: ServerEngine | DryServerEngine
    engines: Mapping[NodeId, DeviceEngine] | Mapping[NodeId, DryDeviceEngine]
    executor: Executor
    if dry:
        server_engine = DryServerEngine(task, batches)
        engines = {d: DryDeviceEngine(server_engine, batches[d]) for d in fleet.devices}
        executor = Dry(server_engine, engines)
    elif task.compute.type == "cuda" and graphs and build_engine is None:
        server_engine = graphed = GraphedServer(task)
        engines = recorded = {
            device: GraphedDevice(task, device, device_loader(recipe, task, device, rows))
            for device, rows in experiment.shares.items()
        }
        settle = partial(torch.cuda.synchronize, task.compute)
        executor = OnStreams(graphed, recorded, settle)
    else:
        server_engine = ServerEngine(task, deferred=True)
        build = build_engine or partial(device_engine, deferred=True)
        engines = {
            device: build(recipe, task, device, rows) for device, rows in experiment.shares.items()
        }
        executor = Inline(server_engine, engines)

    def plan() -> Plan:
        assert server_engine.plan is not None
        return server_engine.plan

    devices = {
        device: SimDevice(
            DeviceCore(
                samples=len(experiment.shares[device]),
                flops_per_second=spec.flops_per_second,
                bytes_per_second=spec.up,
            ),
            up=Link(spec.up, spec.latency),
            down=Link(spec.down, spec.latency),
        )
        for device, spec in fleet.devices.items()
    }
    simulation = Simulation(
        ServerCore(experiment.method, server_settings(recipe, experiment.expected.at_start)),
        devices,
        executor=executor,
        costs=FlopCosts(plan, fleet.server, fleet.devices, batches),
        changes=fleet.changes,
        churn=fleet.churn,
        late={device: spec.joins_at for device, spec in fleet.devices.items()},
        observers=observers,
    )
    return Assembly(simulation, server_engine, engines)


def server_settings(
    recipe: Recipe, devices: int, *, patience: float | None = None
) -> ServerSettings:
    return ServerSettings(
        stop=recipe.stop,
        devices=devices,
        patience=patience,
        drop_diverged=recipe.training.on_divergence == "drop",
        batch_size=recipe.training.batch_size,
        iterations=recipe.training.iterations,
        evaluate_every=recipe.training.evaluate_every,
    )
