"""A dry run of our own model on our own data, from what is stored about both: without torch.

Loading torch takes longer than a small dry run. What is not stored (a model of the user's, options
that change a network, data with other facts) takes `setup.prepare`, with the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedoptima.config.schema import Recipe, TaskConfig
from fedoptima.core.method import Method
from fedoptima.core.plan import Plan
from fedoptima.core.types import NodeId
from fedoptima.data.outline import even_parts, outline
from fedoptima.experiments.assembly import Assembly, Simulated, assemble_dry
from fedoptima.experiments.given import Given
from fedoptima.experiments.method_setup import build_method, plan_settings
from fedoptima.experiments.planned_form import is_planned, with_form
from fedoptima.preprocess.plan import PlanSettings, make_plan
from fedoptima.preprocess.split import DeviceSpeed
from fedoptima.preprocess.stored_costs import StoredCosts, find_costs
from fedoptima.sim.fleet import Fleet, build_fleet
from fedoptima.tasks.output import Output
from fedoptima.trace.record import RecordObserver

if TYPE_CHECKING:
    from torch import Tensor

LOG = logging.getLogger("fedoptima.data")


@dataclass(frozen=True)
class StoredPlanner:
    costs: StoredCosts
    settings: PlanSettings

    def plan(self, devices: list[DeviceSpeed]) -> Plan:
        return make_plan(self.costs, devices, self.settings)


@dataclass(frozen=True)
class DryExperiment(Simulated):
    recipe: Recipe
    method: Method
    fleet: Fleet
    held: Mapping[NodeId, int]
    stored: StoredPlanner

    @property
    def planner(self) -> StoredPlanner:
        return self.stored

    @property
    def samples(self) -> Mapping[NodeId, int]:
        return self.held

    @property
    def compute(self) -> str:
        return "cpu"

    def assemble(self, observers: Sequence[RecordObserver], *, dry: bool) -> Assembly:
        assert dry
        return assemble_dry(self, self.stored, observers)

    def test_accuracy(self, weights: Mapping[str, Tensor]) -> None:
        """There are no weights."""


class _NotStoredError(Exception):
    """Of a form that FedOptima+ tries, more than what is stored is needed."""


def _with_form(recipe: Recipe, given: Given) -> Recipe | None:
    def build(form: Recipe) -> DryExperiment:
        if (found := prepare_dry(form, given, quiet=True)) is None:
            raise _NotStoredError
        return found

    try:
        return with_form(recipe, build)
    except _NotStoredError:
        return None


def prepare_dry(recipe: Recipe, given: Given, *, quiet: bool = False) -> DryExperiment | None:
    """None: more than what is stored is needed, or something is wrong that `prepare` explains."""
    own = given.model is None and given.dataset is None and not recipe.model.options
    own = own and not isinstance(recipe.split.at, str)  # a module is looked for in the model itself
    own = own and recipe.data.device_validation is None
    own = own and recipe.task == TaskConfig() and given.task is None and given.loss is None
    if not own or recipe.data.partition.kind not in ("dirichlet", "iid"):
        return None
    fleet = build_fleet(recipe.fleet, recipe.seed)
    if not is_planned(recipe):
        chosen = _with_form(recipe, given)
        return None if chosen is None else prepare_dry(chosen, given)
    method = build_method(recipe, len(fleet.devices), given)
    data = outline(recipe.data.name, recipe.data.directory, recipe.data.options)
    if data is None:
        return None
    costs = find_costs(recipe.model.name, data.facts, method.auxiliary)
    share = recipe.data.validation
    training = sum(data.per_class) if share == "test" else data.kept_for_training(share)
    parts = even_parts(training or 0, len(fleet.devices))
    if costs is None or parts is None:
        return None
    if data.assumed is not None and not quiet:
        LOG.warning(data.assumed)
    return DryExperiment(
        recipe.model_copy(update={"threads": recipe.threads or 1}),
        method,
        fleet,
        dict(zip(fleet.devices, parts, strict=True)),
        StoredPlanner(costs, plan_settings(recipe, method, Output(data.facts["classes"]), given)),
    )
