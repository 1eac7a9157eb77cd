"""Does a step take as long as the simulator says? CPU time of real jobs, one thread.

The engines of a run execute real jobs (forward pass, auxiliary step, full step, server step) of
VGG-5 and MobileNetV3-Large at several cuts. The rates of a node (`gflops`, `memory_gb_s`,
`overhead_ms`) are fitted to the steps of two cuts of each model; all others are predicted.

    python -m benchmarks.step_costs           prints the table
    python -m benchmarks.step_costs --write   writes docs/simulation-costs.md, too
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks.figures import machine
from benchmarks.noise import images
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.jobs import (
    AuxiliaryStep,
    DeviceProfile,
    Forward,
    FullStep,
    Job,
    LoadModel,
    PlanRun,
    Prepare,
    ServerStep,
)
from fedoptima.core.machine import ComputeEngine, Outcome
from fedoptima.core.plan import Plan
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.engine.determinism import deterministic
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import assemble, prepare
from fedoptima.preprocess.job_costs import JobCosts, Rates
from fedoptima.sim.processes.freed_memory import FreedMemory

DEVICE = NodeId("device")
TARGET = Path("docs/simulation-costs.md")
ROUNDS, STEPS = 2, 8  # of a kind, in each round; the quickest counts: the machine is shared
BOUND = 0.2  # of a step's time: the largest error of a prediction
FULL, SERVER_STEP, ITERATION = "full step", "server step", "device: forward pass, auxiliary step"


@dataclass(frozen=True)
class Task:
    model: str
    size: int  # of its images
    batch: int
    fitted: tuple[int, ...]  # cuts whose steps the rates are fitted to: the others are between
    predicted: tuple[int, ...]  # 0: the whole model is on the device


TASKS = (
    Task("vgg5", 32, 100, fitted=(1, 3), predicted=(2, 0)),
    Task("mobilenet_v3_large", 64, 100, fitted=(1, 10), predicted=(3, 6, 0)),
)


@dataclass(frozen=True)
class Step:
    model: str
    cut: int
    what: str
    seconds: float
    flops: float
    moved: float
    jobs: int
    fitted: bool  # not predicted: the rates come from it

    def predicted(self, rates: Rates) -> float:
        seconds = self.flops / rates.flops_per_second + self.jobs * rates.overhead
        return seconds + (self.moved / rates.memory if rates.memory else 0.0)

    def error(self, rates: Rates) -> float:
        return self.predicted(rates) / self.seconds - 1


def recipe(task: Task, cut: int) -> Recipe:
    table = {
        "model": {"name": task.model},
        "data": {"name": "custom", "partition": {"kind": "iid"}},
        "method": {"name": "fedoptima" if cut else "fl"},
        "split": {"at": cut} if cut else {},
        "fleet": {
            "server": {"gflops": 100.0, "memory_gb_s": 10.0},
            "devices": [{"name": DEVICE, "gflops": 10.0}],
        },
        "training": {"batch_size": task.batch},
        "stop": {"rounds": 1},
    }
    return validate(Recipe, table, "benchmark")


class Bench:
    """The engines of a run with this cut, and the quickest time of each of their jobs."""

    def __init__(self, task: Task, cut: int) -> None:
        self.task, self.cut = task, cut
        samples = 2 * task.batch
        data = images(samples=samples, size=task.size, augmented=False)
        experiment = prepare(recipe(task, cut), Given(dataset=data))
        made = assemble(experiment, [])
        self._server: ComputeEngine = made.server_engine  # type: ignore[assignment]
        self._device: ComputeEngine = made.device_engines[DEVICE]  # type: ignore[assignment]
        planned = self._server.execute(
            PlanRun((DeviceProfile(DEVICE, samples, 1e10, 1e6),)), PayloadId("server/0/0")
        )
        state = experiment.recipe.training.device.state_tensors
        plan = Plan.from_json(planned.text)
        self._costs = JobCosts(plan, device_state=state, server_state=state)
        self._device.execute(Prepare(planned.text), PayloadId("device/0/0"))
        self._device.execute(LoadModel(planned.result, 0.0), PayloadId("device/0/1"))
        self._number = 0
        self._quickest: dict[type[Job], tuple[float, Job]] = {}

    def run(self, steps: int) -> None:
        self._step()  # a warm-up
        for _ in range(steps):
            for job, taken in self._step():
                before, _ = self._quickest.get(type(job), (taken, job))
                self._quickest[type(job)] = (min(before, taken), job)

    def _step(self) -> list[tuple[Job, float]]:
        self._number = number = self._number + 1
        times: list[tuple[Job, float]] = []

        def timed(engine: ComputeEngine, job: Job) -> Outcome:
            began = time.process_time()
            outcome = engine.execute(job, PayloadId(f"x/0/{number}"))
            times.append((job, time.process_time() - began))
            return outcome

        if not self.cut:
            timed(self._device, FullStep(number))
            return times
        activations = timed(self._device, Forward(number)).result
        timed(self._device, AuxiliaryStep(number))
        timed(self._server, ServerStep(DEVICE, 1, number, activations, 0.0))
        return times

    def steps(self) -> Iterator[Step]:
        kinds: dict[str, tuple[type[Job], ...]] = {
            FULL: (FullStep,),
            ITERATION: (Forward, AuxiliaryStep),
            SERVER_STEP: (ServerStep,),
        }
        for what, jobs in kinds.items():
            if jobs[0] in self._quickest:
                found = [self._quickest[job] for job in jobs]
                yield Step(
                    self.task.model,
                    self.cut,
                    what,
                    sum(seconds for seconds, _ in found),
                    sum(self._costs.flops(job, self.task.batch) for _, job in found),
                    sum(self._costs.moved(job, self.task.batch) for _, job in found),
                    len(found),
                    self.cut in self.task.fitted,
                )


def all_steps() -> list[Step]:
    FreedMemory()  # as the workers of a simulation do; else every step clears its pages anew
    with deterministic(1):
        benches = [Bench(task, cut) for task in TASKS for cut in task.fitted + task.predicted]
        for _ in range(ROUNDS):
            for bench in benches:
                bench.run(STEPS)
        return [step for bench in benches for step in bench.steps()]


def fit(steps: Sequence[Step]) -> Rates:
    """The rates with the least squares of relative errors, none of them negative."""
    seconds = np.array([step.seconds for step in steps])
    terms = np.array([[step.flops, step.moved, step.jobs] for step in steps]) / seconds[:, None]
    best, least = np.zeros(3), np.inf
    for used in (c for size in (1, 2, 3) for c in combinations(range(3), size) if 0 in c):
        found, *_ = np.linalg.lstsq(terms[:, used], np.ones(len(steps)), rcond=None)
        left = float(np.sum((terms[:, used] @ found - 1) ** 2))
        if (found >= 0).all() and left < least:
            best, least = np.zeros(3), left
            best[list(used)] = found
    flops, memory, overhead = (float(value) for value in best)
    return Rates(1 / flops, 1 / memory if memory else None, overhead)


# ---- as text -------------------------------------------------------------------------------------

HEAD = """# What the simulator charges, and how accurate that is

A job of a simulated node takes FLOPs / `gflops`; they are those that the engines compute
(`tests/sim/test_charged_work.py`), so a server that sends no gradients to devices does not pay for
that of what comes in. A fleet may charge for more, on devices and on the
server (all keys: [recipe.md](recipe.md#fleet); why and what exactly:
[decision 0028](decisions/0028-what-a-simulated-node-pays-for.md)):

| key | what it charges |
|---|---|
| `memory_gb_s` | bytes that operations, optimiser steps and merges move, / bandwidth |
| `overhead_ms` | a fixed time of every job |
| `serialization_gb_s` | bytes of messages / rate, at either end |
| `server.mbps` | the server's own link, which all devices share |

```toml
[server]
gflops = {gflops:.0f}
memory_gb_s = {memory:.1f}
overhead_ms = {overhead:.1f}
mbps = 1000
```

## Checked against real steps

`python -m benchmarks.step_costs --write` executes the jobs of a run on one CPU thread, fits the
three rates to the steps of two cuts of each model, an early and a late one (*fit*), and predicts
all others from them: one set of rates for both models. CPU time, the quickest of {steps}. Rates
found here: {rates}.
*FLOPs alone* is the same with a fitted `gflops` and nothing else ({plain}).

| model | cut | step | | measured ms | predicted ms | error | FLOPs alone |
|---|---:|---|---|---:|---:|---:|---:|
"""

FOOT = """
Largest error of a prediction: {worst:.0%} (the aim is {bound:.0%}); with FLOPs alone {plain:.0%}.
The fitted steps are met within {fitted:.0%}.
Batches of {batches}. Cut 0: the whole model on the device.
Made on {date}: {processor}, {cores} cores, of which one is used, torch {torch}, Python {python},
fedoptima {fedoptima}.
"""


def described(rates: Rates) -> str:
    memory = f", {rates.memory / 1e9:.1f} GB/s" if rates.memory else ""
    overhead = f", {rates.overhead * 1000:.1f} ms a job" if rates.overhead else ""
    return f"{rates.flops_per_second / 1e9:.1f} GFLOP/s{memory}{overhead}"


def without_other_terms(steps: Sequence[Step]) -> Rates:
    """With the least squares of relative errors, as `fit`."""
    terms = np.array([step.flops / step.seconds for step in steps])
    return Rates(float(np.sum(terms**2) / np.sum(terms)))


def worst(steps: Sequence[Step], rates: Rates, *, fitted: bool = False) -> float:
    """The largest error of those that are predicted, or of the others."""
    return max(abs(step.error(rates)) for step in steps if step.fitted == fitted)


def rows(steps: Sequence[Step], rates: Rates, plain: Rates) -> Iterator[str]:
    for step in steps:
        yield (
            f"| {step.model} | {step.cut} | {step.what} | {'fit' if step.fitted else ''} "
            f"| {step.seconds * 1000:.1f} | {step.predicted(rates) * 1000:.1f} "
            f"| {step.error(rates):+.0%} | {step.error(plain):+.0%} |"
        )


def measure() -> dict[str, object]:
    """For `benchmarks.run`."""
    steps = all_steps()
    calibration = [step for step in steps if step.fitted]
    rates, plain = fit(calibration), without_other_terms(calibration)
    return {
        "what": "largest error of a predicted step, VGG-5 and MobileNetV3-Large on one thread",
        "ratio": worst(steps, rates),
        "at most": BOUND,
        "rates": described(rates),
        "with FLOPs alone": worst(steps, plain),
        "steps": list(rows(steps, rates, plain)),
    }


def page(steps: Sequence[Step]) -> str:
    calibration = [step for step in steps if step.fitted]
    rates, plain = fit(calibration), without_other_terms(calibration)
    head = HEAD.format(
        gflops=rates.flops_per_second / 1e9,
        memory=(rates.memory or 0.0) / 1e9,
        overhead=rates.overhead * 1000,
        steps=ROUNDS * STEPS,
        rates=described(rates),
        plain=described(plain),
    )
    batches = ", ".join(f"{task.batch} ({task.model}, {task.size} x {task.size})" for task in TASKS)
    foot = FOOT.format(
        worst=worst(steps, rates),
        bound=BOUND,
        plain=worst(steps, plain),
        fitted=worst(steps, rates, fitted=True),
        batches=batches,
        **machine(),
    )
    return head + "\n".join(rows(steps, rates, plain)) + "\n" + foot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET}")
    write = parser.parse_args().write
    written = page(all_steps())
    print(written)
    if write:
        TARGET.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
