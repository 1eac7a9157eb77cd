"""How long a useful sample takes, from the shortest dry run that shows it.

Devices that stay waste nothing, so the useful samples are those that devices trained on, or, where
devices have a loss of their own, those the server did (`analysis.work`).

Behind a barrier all rounds are alike: one is enough. Without one, devices are at different places
of their rounds, so some epochs are left out at the beginning and several are measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedoptima.analysis.curve import CourseAccount
from fedoptima.config.fleet import FleetConfig
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError, FedOptimaError
from fedoptima.core.stopping import StopRule
from fedoptima.experiments.dry_setup import DryExperiment, prepare_dry
from fedoptima.experiments.given import Given
from fedoptima.experiments.other_fleet import other_fleet
from fedoptima.experiments.setup import Experiment, prepare

# Epochs that are left out, and that count, by what devices do. Whole rounds of the slowest are
# needed where they send nothing but models; where they send activations, models weigh little.
_EPOCHS = {"full": (2, 8), "auxiliary": (1, 4), "gradient": (1, 4)}
_MBPS = 1e6 / 8  # bytes per second


@dataclass(frozen=True, order=True)
class Conditions:
    """Under which a fleet works, instead of those that it describes."""

    devices: float  # factor on their speeds
    mbps: float  # of every link, in each direction
    latency_ms: float
    server_gflops: float

    def of(self, fleet: FleetConfig) -> dict[str, Any]:
        """The fleet under these conditions, as a recipe describes it."""
        return other_fleet(
            fleet,
            scale=self.devices,
            mbps=self.mbps,
            latency_ms=self.latency_ms,
            server_gflops=self.server_gflops,
        )


def pace_of(experiment: DryExperiment | Experiment) -> float:
    """Seconds of a sample that goes through the whole network, on the clock of a dry run.

    When the run was to end does not matter.
    """
    local_loss = experiment.method.program.kind == "auxiliary"
    if experiment.method.aggregation().closes_round and not local_loss:
        course = _course(_until(experiment, StopRule(rounds=1)))
        return course.seconds / course.device_samples
    left_out, measured = _EPOCHS[experiment.method.program.kind]
    course = _course(_until(experiment, StopRule(epochs=left_out + measured)))
    first, last = course.points[left_out - 1], course.points[-1]
    side = "server_samples" if local_loss else "device_samples"
    samples: int = getattr(last, side) - getattr(first, side)
    if not samples:
        raise FedOptimaError("no sample reached the server")
    return (last.seconds - first.seconds) / samples


def prepared(
    recipe: Recipe,
    method: str,
    options: Mapping[str, object],
    conditions: Conditions | None,
    stop: StopRule,
) -> DryExperiment | Experiment:
    """The recipe with another method, conditions and budget; an evaluation every epoch.

    What FedOptima+ leaves open is planned for these conditions.
    """
    if recipe.fleet is None:
        raise ConfigError("fleet: is missing; there is nothing to simulate")
    table = recipe.model_dump() | {"method": {"name": method, **options}}
    table["training"]["evaluate_every"] = 1.0
    if conditions is not None:
        table["fleet"] = conditions.of(recipe.fleet)
    changed = validate(Recipe, table, recipe.name).model_copy(update={"stop": stop})
    return prepare_dry(changed, Given()) or prepare(changed, Given(), dry=True)


def cut_of(experiment: DryExperiment | Experiment) -> tuple[int, int]:
    """The plan's split and number of parts: a run is simulated until it has one."""
    assembly = experiment.assemble([], dry=True)
    assembly.simulation.run(pause=lambda: assembly.server_engine.plan is not None)
    plan = assembly.server_engine.plan
    return (plan.split, plan.micro_batches) if plan else (0, 0)


def conditions_of(recipe: Recipe) -> Conditions:
    """As its fleet describes them; links are those of its first device."""
    fleet = prepared(recipe, recipe.method.name, {}, None, StopRule(rounds=1)).fleet
    link = next(iter(fleet.devices.values()))
    speed = fleet.server.flops_per_second / 1e9
    return Conditions(1.0, link.up / _MBPS, 1000 * link.latency, speed)


def _until(experiment: DryExperiment | Experiment, stop: StopRule) -> DryExperiment | Experiment:
    return replace(experiment, recipe=experiment.recipe.model_copy(update={"stop": stop}))


def _course(experiment: DryExperiment | Experiment) -> CourseAccount:
    """Without a trace, which would take most of the time."""
    course = CourseAccount()
    halt = experiment.assemble([course.observe], dry=True).simulation.run()
    if halt is None or halt.failed:
        raise FedOptimaError(halt.reason if halt else "the run did not end")
    return course
