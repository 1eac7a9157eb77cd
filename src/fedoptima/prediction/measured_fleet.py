"""The fleet of a real run, from its trace: what the devices reported, and how fast the server
worked. With it, the run's recipe can be simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedoptima.analysis.run_view import RunView
from fedoptima.analysis.spans import Kind
from fedoptima.config.fleet import DeviceGroup, FleetConfig, ServerConfig
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.types import SERVER
from fedoptima.experiments.setup import Experiment, prepare
from fedoptima.sim.fleet import NodeSpec

_UNSEEN = 1000.0  # GFLOP/s of a server that was not seen training: it only merges


def measured_experiment(
    recipe: Recipe, view: RunView, progress: Callable[[str, int, int], None]
) -> Experiment:
    if not view.joins:
        raise ConfigError("no device has joined the run yet")
    groups = [
        validate(
            DeviceGroup,
            {
                "name": name,
                "gflops": join.flops_per_second / 1e9,
                "mbps": join.bytes_per_second * 8e-6,
            },
            f"device {name}",
        )
        for name, join in view.joins.items()
    ]
    fleet = FleetConfig(server=ServerConfig(gflops=_UNSEEN), devices=tuple(groups))
    experiment = prepare(recipe.model_copy(update={"fleet": fleet}), progress=progress, dry=True)
    plan = view.plan
    if plan is not None and plan.table and experiment.task.planning.split is None:
        planning = replace(experiment.task.planning, split=plan.split)
        experiment = replace(experiment, task=replace(experiment.task, planning=planning))
    server = _server(experiment, view)
    return replace(experiment, fleet=replace(experiment.fleet, server=server))


def _server(experiment: Experiment, view: RunView) -> NodeSpec:
    """Its training speed, and how long its merges took."""
    spec, summary = experiment.fleet.server, view.summary
    trained, merged = _seconds(view, Kind.TRAIN), _seconds(view, Kind.MERGE)
    if trained and summary.server_samples:
        blocks = experiment.plan().server_blocks
        work = sum(block.forward_flops + block.backward_flops for block in blocks)
        spec = replace(spec, flops_per_second=work * summary.server_samples / trained)
    if merged and summary.versions:
        spec = replace(spec, seconds={"merge": merged / summary.versions})
    return spec


def _seconds(view: RunView, kind: Kind) -> float:
    lane = view.timeline.lanes.get(SERVER)
    return view.timeline.bin_seconds * sum(lane.shares.get(kind, ())) if lane else 0.0
