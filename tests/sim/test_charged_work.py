"""A simulated node is charged for the products that the engines of a run really compute."""

from __future__ import annotations

import pytest
from torch import nn

from benchmarks.noise import images
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    DeviceProfile,
    Forward,
    FullStep,
    Job,
    LoadModel,
    OpenCopy,
    PlanRun,
    Prepare,
    ServerStep,
)
from fedoptima.core.machine import ComputeEngine
from fedoptima.core.plan import Plan
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import assemble, prepare
from fedoptima.preprocess.job_costs import JobCosts
from fedoptima.preprocess.work import counter

D, BATCH = NodeId("d"), 4
RESULT = PayloadId("x")


def own_model() -> nn.Sequential:
    """Where the second block is the server's first, nobody needs a gradient before the third."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.Conv2d(4, 4, 3),
        nn.Conv2d(4, 4, 3),
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6 * 24 * 24, 10)),
    )
    model[1].requires_grad_(False)
    return model


MODELS = {"vgg5": 32, "mobilenet_v3_large": 64, "own": 32}  # and the size of their images


class Run:
    """The two engines of a run with one device, before its first step."""

    def __init__(self, method: str, model: str, cut: int) -> None:
        table = {
            "model": {"name": "custom" if model == "own" else model},
            "data": {"name": "custom", "partition": {"kind": "iid"}},
            "method": {"name": method},
            "split": {"at": cut} if cut else {},
            "fleet": {"server": {"gflops": 1.0}, "devices": [{"name": D, "gflops": 1.0}]},
            "training": {"batch_size": BATCH},
            "stop": {"rounds": 1},
        }
        data = images(samples=2 * BATCH, size=MODELS[model], augmented=False)
        given = Given(dataset=data, model=own_model() if model == "own" else None)
        made = assemble(prepare(validate(Recipe, table, "test"), given), [])
        self.server: ComputeEngine = made.server_engine  # type: ignore[assignment]
        self.device: ComputeEngine = made.device_engines[D]  # type: ignore[assignment]
        speeds = (DeviceProfile(D, 2 * BATCH, 1e9, 1e6),)
        planned = self.server.execute(PlanRun(speeds), RESULT)
        self.costs = JobCosts(Plan.from_json(planned.text))
        self.device.execute(Prepare(planned.text), RESULT)
        self.device.execute(LoadModel(planned.result, 0.0), RESULT)
        self.answers = method == "oafl"
        if self.answers:
            self.server.execute(OpenCopy(D, 1), RESULT)

    def check(self, engine: ComputeEngine, job: Job) -> Payload:
        with counter() as counted:
            result = engine.execute(job, RESULT).result
        assert counted.get_total_flops() == self.costs.flops(job, BATCH), job
        return result


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("method", ["fedoptima", "cse_fsl", "oafl"])
def test_the_steps_of_both_sides(method: str, cut: int, model: str) -> None:
    """A server that answers with no gradient does not compute that of its input, either."""
    run = Run(method, model, cut)
    activations = run.check(run.device, Forward(0))
    gradient = run.check(run.server, ServerStep(D, 1, 0, activations, 0.0, run.answers))
    if run.answers:
        run.check(run.device, Backward(0, 0, gradient))
    else:
        run.check(run.device, AuxiliaryStep(0))


@pytest.mark.parametrize("model", MODELS)
def test_a_step_of_the_whole_model(model: str) -> None:
    run = Run("fl", model, 0)
    run.check(run.device, FullStep(0))
