"""What a server needs for a run over the network, and what it tells its devices."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fedoptima.config.difference import difference
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.server import ServerCore
from fedoptima.core.types import NodeId
from fedoptima.data.layouts import ReadingProgress, quiet
from fedoptima.data.registry import OWN_FILES
from fedoptima.experiments.describe import Expected, describe
from fedoptima.experiments.device_validation import divided, measured_on
from fedoptima.experiments.given import Given
from fedoptima.experiments.method_setup import server_settings
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.setup import RunSetup, prepare_run, share_out, with_planned_form
from fedoptima.preprocess.split import DeviceSpeed
from fedoptima.sim.fleet import build_fleet
from fedoptima.trace.description import Mode, RunDescription


@dataclass(frozen=True)
class ServerSetup(RunSetup):
    """Everything a server needs, not yet started."""

    expected: Expected

    def core(self) -> ServerCore:
        patience = self.recipe.deploy.patience
        return ServerCore(
            self.method, server_settings(self.recipe, self.expected.at_start, patience=patience)
        )

    def describe(self) -> RunDescription:
        return describe(
            self.recipe, self.method, Mode.NETWORK, self.expected, material=self.material
        )


def device_names(recipe: Recipe) -> list[NodeId]:
    """The devices that the recipe knows by name; they share its training data."""
    return [] if recipe.fleet is None else list(build_fleet(recipe.fleet, recipe.seed).devices)


def expected_devices(recipe: Recipe) -> Expected:
    named, wanted = len(device_names(recipe)), recipe.deploy.devices
    return Expected(max(wanted or 1, named), wanted or named or 1)


def prepare_server(
    recipe: Recipe,
    given: Given | None = None,
    progress: ReadingProgress = quiet,
    *,
    shared: bool = False,
) -> ServerSetup:
    """``shared``: all devices hold parts of this data set, and bring none of their own."""
    expected = expected_devices(recipe)
    recipe = with_planned_form(recipe, given)
    run = prepare_run(recipe, expected.devices, given, progress)
    run.warn(expected.devices)
    # A plan for an assumed device: a model or split that cannot work is reported now, and not
    # when the devices have joined.
    run.workload.plan([DeviceSpeed(flops_per_second=1e9, bytes_per_second=1e6)])
    workload, names = run.workload, device_names(recipe)
    if shared:  # every device would fail
        share_out(workload.dataset, recipe, names)
    if recipe.data.device_validation is not None:
        if not names:
            raise ConfigError(
                f"data.device_validation = {recipe.data.device_validation:g}: over the network the "
                "server measures on what the recipe's devices hold of its data set, and the recipe "
                "names none; give it a fleet, or leave this out"
            )
        _, held = divided(recipe, share_out(workload.dataset, recipe, names))
        workload = measured_on(workload, held)
    return ServerSetup(run.recipe, run.method, workload, expected)


def check_same_recipe(recipe: Recipe, kept: Recipe, run: RunDirectory) -> None:
    """A run is resumed with the recipe it was started with."""
    recipe = run.as_begun(with_planned_form(recipe))
    if recipe.stop != kept.stop and recipe.stop == run.first_stop:  # it was extended since
        kept = kept.model_copy(update={"stop": recipe.stop})
    # A thread count that the recipe leaves open was chosen when the run was started.
    threads = recipe.threads or kept.threads
    recipe = recipe.model_copy(update={"threads": threads})
    if recipe != kept:
        differs = difference(recipe, kept)
        raise ConfigError(
            f"{run.path}: was started with another recipe{f' ({differs})' if differs else ''}; "
            "leave RECIPE and its options out to resume it, or choose another folder"
        )


def instructions(setup: ServerSetup) -> str:
    """The recipe for the devices, without paths and compute device, which are the device's choice.

    It includes the facts of the data, because a device's own data may lack some classes, and the
    names of a table's features, because its columns may come in another order.
    """
    plain, dataset = setup.recipe.model_dump(mode="json"), setup.workload.dataset
    plain["data"]["directory"] = None
    plain["device"] = "cpu"
    if setup.recipe.data.name in OWN_FILES:  # a device may have files of some classes only
        plain["data"]["classes"] = list(dataset.class_names)
    if dataset.feature_names:
        plain["data"]["features"] = list(dataset.feature_names)
    return json.dumps({"recipe": plain, "facts": {**dataset.facts, "classes": dataset.classes}})
