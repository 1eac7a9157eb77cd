"""What a server needs for a run over the network, and what it tells its devices."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

from fedoptima.config.schema import Recipe
from fedoptima.core.method import Method
from fedoptima.core.server import ServerCore
from fedoptima.core.types import NodeId
from fedoptima.data.layouts import ReadingProgress
from fedoptima.data.registry import load_dataset
from fedoptima.engine.task import Task
from fedoptima.experiments.run_directory import plain_recipe
from fedoptima.experiments.setup import (
    Given,
    build_method,
    build_task,
    compute_device,
    server_settings,
    validation_of,
)
from fedoptima.preprocess.split import DeviceSpeed
from fedoptima.sim.fleet import build_fleet


@dataclass(frozen=True)
class ServerSetup:
    """Everything a server needs, not yet started."""

    recipe: Recipe
    task: Task
    method: Method
    devices: int  # it waits for

    def core(self) -> ServerCore:
        patience = self.recipe.deploy.patience
        return ServerCore(
            self.method, server_settings(self.recipe, self.devices, patience=patience)
        )


def device_names(recipe: Recipe) -> list[NodeId]:
    """The devices that the recipe knows by name; they share its training data."""
    return [] if recipe.fleet is None else list(build_fleet(recipe.fleet, recipe.seed).devices)


def expected_devices(recipe: Recipe) -> int:
    """How many the method's defaults are made for."""
    return max(recipe.deploy.devices or 1, len(device_names(recipe)))


def prepare_server(
    recipe: Recipe, given: Given | None = None, progress: ReadingProgress = lambda *_: None
) -> ServerSetup:
    given = given or Given()
    compute = compute_device(recipe.device)
    recipe = recipe.model_copy(update={"threads": recipe.threads or torch.get_num_threads()})
    method = build_method(recipe, expected_devices(recipe))
    dataset = given.dataset or load_dataset(
        recipe.data.name, directory=recipe.data.directory, progress=progress, **recipe.data.options
    )
    dataset, validation = validation_of(dataset, recipe)
    task = build_task(recipe, method, dataset, validation, given, compute)
    # A plan for an assumed device: a model or split that cannot work is reported now, and not
    # when the devices have joined.
    task.plan([DeviceSpeed(flops_per_second=1e9, bytes_per_second=1e6)])
    waits_for = recipe.deploy.devices or len(device_names(recipe)) or 1
    return ServerSetup(recipe, task, method, waits_for)


def instructions(setup: ServerSetup) -> str:
    """What a device has to know. Where its data is and what computes is left to the device.

    With the facts of the data, which the model is made for: a device's own may lack some classes.
    """
    plain, dataset = plain_recipe(setup.recipe), setup.task.dataset
    data = plain["data"]
    assert isinstance(data, dict)
    data["directory"] = None
    plain["device"] = "cpu"
    return json.dumps({"recipe": plain, "facts": {**dataset.facts, "classes": dataset.classes}})
