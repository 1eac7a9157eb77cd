"""The Pre-processor alone: what it decides, and how much computing time that takes here.

Measured anew: what is stored about our own models is left aside. Computing time, because what else
a machine is doing is no part of it.
"""

from __future__ import annotations

import time
from dataclasses import replace

from fedoptima.experiments.setup import prepare
from fedoptima.reproduction.planned import Planned
from fedoptima.reproduction.records import Made, Record, plan_record


def timed_plan(planned: Planned, made: Made) -> Record:
    """The data are not part of it: a stand-in of their shape is enough to profile a model."""
    experiment = prepare(planned.recipe, dry=True)
    times = []
    for _ in range(2):  # the first call in a process also loads parts of torch
        fresh = replace(experiment, workload=replace(experiment.workload, stored_costs=None))
        began = time.process_time()
        plan = fresh.plan()
        times.append(time.process_time() - began)
    return plan_record(
        planned,
        made,
        seconds=min(times),
        split=(plan.split, plan.blocks[plan.split - 1].name),
        candidates=[(row.name, row.train_seconds, row.transfer_seconds) for row in plan.table],
    )
