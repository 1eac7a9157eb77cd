"""From a recipe to everything a run needs: data, model, method, fleet, engines, cores."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedoptima.config.schema import Recipe
from fedoptima.config.training import OptimizerConfig
from fedoptima.core.method import Method
from fedoptima.core.seeding import derive
from fedoptima.core.types import SERVER, NodeId
from fedoptima.data.dataset import Dataset
from fedoptima.data.layouts import ReadingProgress, quiet
from fedoptima.data.partition import hold_out
from fedoptima.data.registry import load_dataset, load_or_stand_in
from fedoptima.data.use import Use
from fedoptima.engine.compute_device import CPU, compute_device
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.graphs.device import GraphedDevice
from fedoptima.engine.graphs.recorder import say_why_not
from fedoptima.engine.graphs.server import GraphedServer
from fedoptima.engine.local_loss import LocalLoss
from fedoptima.engine.misfit import (
    check_complete,
    check_copies,
    check_precision_of,
    check_scripts,
    check_tensors,
    check_trained,
    slow_statistics,
)
from fedoptima.engine.server import ServerEngine
from fedoptima.engine.workload import Workload
from fedoptima.experiments.assembly import Assembly, Simulated, assemble_dry, build_simulation
from fedoptima.experiments.device_engines import BuildEngine, device_engine, device_loader
from fedoptima.experiments.device_validation import divided, measured_on
from fedoptima.experiments.division import divide
from fedoptima.experiments.dry_setup import prepare_dry
from fedoptima.experiments.given import Given
from fedoptima.experiments.given_task import check_figures, task_of
from fedoptima.experiments.given_training import learner_code
from fedoptima.experiments.material import material_of
from fedoptima.experiments.method_setup import build_method, plan_settings
from fedoptima.experiments.planned_form import with_form
from fedoptima.experiments.workers import workers_for
from fedoptima.models.registry import build_model
from fedoptima.named_code import AllowedCode
from fedoptima.preprocess.cuts import forget_agreement
from fedoptima.preprocess.stored_costs import StoredCosts, find_costs
from fedoptima.sim.executor import Executor, Inline, OnStreams
from fedoptima.sim.fleet import Fleet, build_fleet
from fedoptima.sim.processes.executor import Processes, WorkedElsewhere
from fedoptima.trace.record import RecordObserver

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunSetup:
    """What every node of a run is built from, not yet started."""

    recipe: Recipe
    method: Method
    workload: Workload

    def warn(self, devices: int) -> None:
        """Of what goes wrong without an error."""
        training, samples = self.recipe.training, len(self.workload.dataset.train)
        steps = training.iterations or max(1, samples // devices // training.batch_size)
        if said := slow_statistics(self.workload.model, steps):
            _log.warning(said)
        if training.batch_size > (each := samples // devices):
            _log.warning(
                "training.batch_size = %d is more than devices hold (%d samples on average): a "
                "batch is then all that a device has, and an epoch one step; lower it",
                training.batch_size,
                each,
            )

    @property
    def material(self) -> dict[str, dict[str, Any]]:
        """What tells its model and data from others."""
        return material_of(self.workload)

    def test_accuracy(self, weights: Mapping[str, Tensor]) -> float | None:
        """Where validation data was held out of the training data."""
        if self.recipe.data.validation == "test":
            return None
        workload, model = self.workload, deepcopy(self.workload.model)
        model.load_state_dict(dict(weights))
        metrics = workload.evaluate([model.to(workload.compute)], workload.dataset.test)
        return dict(metrics).get("accuracy")


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
    method = build_method(recipe, devices, given)
    load = load_or_stand_in if dry else load_dataset
    task = task_of(recipe.task, given.task, given.loss, given.code)
    dataset = given.dataset or load(
        recipe.data.name,
        given.code,
        Use(column=recipe.data.partition.column, task=task),
        directory=recipe.data.directory,
        progress=progress,
        **recipe.data.options,
    )
    dataset = dataset.for_task(task)
    check_figures(recipe, task)
    if not dry:
        dataset = dataset.cached() if recipe.data.cache else dataset
        dataset = dataset.with_workers(recipe.data.workers)
    validation = dataset.test
    if recipe.data.validation != "test":
        dataset, validation = hold_out(dataset, recipe.data.validation, recipe.seed)
    model = _build_model(recipe, dataset, given.code) if given.model is None else given.model
    check_complete(model)
    check_scripts(model)
    check_tensors(model)
    check_precision_of(model, recipe.training.precision)
    check_copies(model)
    forget_agreement(model)
    check_trained(model)
    workload = Workload(
        model=model,
        dataset=dataset.to(compute),
        validation=validation.to(compute),
        planning=plan_settings(recipe, method, dataset.output, given),
        device_optimizer=_optimizer(recipe.training.device, method),
        server_optimizer=_optimizer(recipe.training.server, method),
        schedule=recipe.training.schedule,
        compute=compute,
        evaluation_batch=recipe.training.evaluation_batch,
        precision=recipe.training.precision,
        device_code=learner_code(recipe.training, "device", given.functions, given.code),
        server_code=learner_code(recipe.training, "server", given.functions, given.code),
        robust=method.robust,
        falls=recipe.stop.falls,
        local_loss=cast("LocalLoss | None", method.local_loss),
        stored_costs=_stored_costs(recipe, method, dataset, given),
    )
    return RunSetup(recipe, method, workload)


def _optimizer(config: OptimizerConfig, method: Method) -> OptimizerConfig:
    return config.model_copy(update={"reset_on_load": True}) if method.reset_optimizer else config


def _stored_costs(
    recipe: Recipe, method: Method, dataset: Dataset, given: Given
) -> StoredCosts | None:
    """Of our own models: measuring them takes as long as some rounds of a small run."""
    if given.model is not None or recipe.model.options or isinstance(recipe.split.at, str):
        return None
    return find_costs(recipe.model.name, dataset.facts, method.auxiliary)


@dataclass(frozen=True)
class Experiment(RunSetup, Simulated):
    """All parts of a simulated run, not yet started."""

    fleet: Fleet
    shares: Mapping[NodeId, NDArray[np.int64]]  # the rows of the training data each device holds

    @property
    def samples(self) -> dict[NodeId, int]:
        return {device: len(rows) for device, rows in self.shares.items()}

    @property
    def compute(self) -> torch.device:
        return self.workload.compute

    def assemble(self, observers: Sequence[RecordObserver], *, dry: bool) -> Assembly:
        recorded = self.recipe.workers == "auto"
        return assemble(
            self, observers, dry=dry, graphs=recorded, workers=1 if dry else self.workers
        )

    @property
    def workers(self) -> int:
        """Processes for the tensor work of a run that is not dry."""
        return workers_for(self.recipe, self.workload, list(self.batches.values()))

    @property
    def planner(self) -> Workload:
        return self.workload


def prepare(
    recipe: Recipe,
    given: Given | None = None,
    progress: ReadingProgress = quiet,
    *,
    dry: bool = False,
) -> Experiment:
    fleet = build_fleet(recipe.fleet, recipe.seed)
    recipe = with_planned_form(recipe, given)
    recipe = recipe.model_copy(update={"threads": recipe.threads or 1})
    run = prepare_run(recipe, len(fleet.devices), given, progress, dry=dry)
    if not dry:
        run.warn(len(fleet.devices))
    shares = share_out(run.workload.dataset, recipe, list(fleet.devices))
    workload = run.workload
    if recipe.data.device_validation is not None:
        shares, held = divided(recipe, shares)
        workload = workload if dry else measured_on(workload, held)
    return Experiment(run.recipe, run.method, workload, fleet, shares)


def with_planned_form(recipe: Recipe, given: Given | None = None) -> Recipe:
    """With what FedOptima+ chooses; any other method's as it is."""
    return with_form(recipe, partial(build_form, given or Given()))


def build_form(given: Given, recipe: Recipe) -> Simulated:
    """For a dry run, quickly where what is stored is enough."""
    return prepare_dry(recipe, given, quiet=True) or prepare(recipe, given, dry=True)


def share_out(
    dataset: Dataset, recipe: Recipe, devices: list[NodeId]
) -> dict[NodeId, NDArray[np.int64]]:
    """The rows of the training data that each device holds."""
    parts = divide(dataset, recipe.data.partition, devices, derive(recipe.seed, "partition"))
    return dict(zip(devices, parts, strict=True))


def _build_model(recipe: Recipe, dataset: Dataset, code: AllowedCode) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(recipe.seed, "model"))
        return build_model(recipe.model.name, dataset.facts, recipe.model.options, code)


# ---- the simulation --------------------------------------------------------------------------


def assemble(
    experiment: Experiment,
    observers: Sequence[RecordObserver],
    *,
    dry: bool = False,
    build_engine: BuildEngine | None = None,
    graphs: bool = True,
    workers: int = 1,
) -> Assembly:
    """``build_engine``: makes a device's engine; `device_engine` by default.

    ``graphs``: on a GPU, record training steps; without, they are the reference. ``workers``:
    processes for the tensor work, if more than one; `executor.close` ends them.
    """
    recipe, workload = experiment.recipe, experiment.workload
    if dry:
        return assemble_dry(experiment, workload, observers, workload.labels.nbytes)
    build = build_engine or partial(device_engine, deferred=True)
    if workers > 1:
        return _in_processes(experiment, observers, build, workers)
    server: ServerEngine
    engines: Mapping[NodeId, DeviceEngine]
    executor: Executor
    if workload.compute.type == "cuda" and graphs and build_engine is None:
        if workload.local_loss is not None:
            say_why_not("devices", "the method's local_loss reads the weights of the round's start")
        server = graphed = GraphedServer(workload)
        engines = recorded = {
            device: GraphedDevice(workload, device, device_loader(recipe, workload, device, rows))
            for device, rows in experiment.shares.items()
        }
        settle = partial(torch.cuda.synchronize, workload.compute)
        executor = OnStreams(graphed, recorded, settle)
    else:
        server = ServerEngine(workload, deferred=True)
        engines = {
            device: build(recipe, workload, device, rows)
            for device, rows in experiment.shares.items()
        }
        executor = Inline(server, engines)
    simulation = build_simulation(experiment, executor, lambda: server.plan, observers)
    return Assembly(simulation, server, engines, executor)


def _in_processes(
    experiment: Experiment,
    observers: Sequence[RecordObserver],
    build: BuildEngine,
    workers: int,
) -> Assembly:
    recipe, workload, shares = experiment.recipe, experiment.workload, experiment.shares
    executor = Processes(
        *(workload, experiment.batches),
        *(lambda device: build(recipe, workload, device, shares[device]), workers),
    )
    simulation = build_simulation(experiment, executor, lambda: executor.plan, observers)
    engines = {node: WorkedElsewhere(executor, node) for node in (SERVER, *shares)}
    return Assembly(simulation, engines.pop(SERVER), engines, executor)
