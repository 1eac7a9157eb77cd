"""A device's and a server's engine on a workbench: jobs go in by hand, nobody schedules them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedoptima.config.training import OptimizerConfig, Precision, ScheduleConfig
from fedoptima.core.codecs import PLAIN as PLAIN_CODECS
from fedoptima.core.codecs import Codecs
from fedoptima.core.jobs import (
    AuxiliaryStep,
    DeviceProfile,
    Forward,
    Job,
    LoadModel,
    PlanRun,
    Prepare,
)
from fedoptima.core.machine import Outcome
from fedoptima.core.method import ServerTraining
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.data.custom import as_dataset
from fedoptima.data.loader import Loader
from fedoptima.engine.checkpoint import Saved, restore_checkpoint
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.optimizer import OURS, LearnerCode
from fedoptima.engine.payloads import Tensors
from fedoptima.engine.server import ServerEngine
from fedoptima.engine.workload import Workload
from fedoptima.preprocess.plan import PlanSettings
from fedoptima.tasks.ready import CLASSIFICATION
from fedoptima.tasks.task import Task

SEED = 5
RATE = 0.1
PLAIN = OptimizerConfig(learning_rate=RATE, momentum=0.0)


def samples(count: int = 28, *shape: int, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *(shape or (6,)), generator=generator)
    return inputs, torch.arange(count) % classes


def dense_model(seed: int = 1) -> nn.Sequential:
    """Two blocks, nothing random, nothing that depends on the rest of the batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Sequential(nn.Linear(6, 8), nn.Tanh()),
            nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3)),
        )


class Bench:
    """One server, some devices with all of the data each, a plan made and a model loaded."""

    def __init__(
        self,
        model: nn.Module,
        data: tuple[Tensor, Tensor],
        *,
        batch: int = 7,
        auxiliary: str | int = "classifier",
        training: ServerTraining = ServerTraining.SHARED,
        optimizer: OptimizerConfig = PLAIN,
        schedule: ScheduleConfig | None = None,
        devices: Sequence[str] = ("d",),
        compute: str = "cpu",
        precision: Precision = "float32",
        task: Task = CLASSIFICATION,
        device_code: LearnerCode = OURS,
        codecs: Codecs = PLAIN_CODECS,
    ) -> None:
        dataset = as_dataset(data, data, task=task).to(compute)
        planning = PlanSettings(
            training=training,
            batch_size=batch,
            classes=dataset.classes,
            places=dataset.output.places,
            seed=SEED,
            auxiliary=auxiliary,
            split=None if training is ServerTraining.NONE else 1,
            codecs=codecs,
        )
        self.workload = Workload(
            model=model,
            dataset=dataset,
            validation=dataset.test,
            planning=planning,
            device_optimizer=optimizer,
            server_optimizer=optimizer,
            schedule=schedule or ScheduleConfig(),
            compute=torch.device(compute),
            precision=precision,
            device_code=device_code,
        )
        self._jobs = 0
        self.server = ServerEngine(self.workload)
        self.loaders = {d: self._loader(d, batch) for d in devices}
        self.devices = {d: DeviceEngine(self.workload, NodeId(d), self.loaders[d]) for d in devices}
        profiles = tuple(DeviceProfile(NodeId(d), len(data[1]), 1e9, 1e6) for d in devices)
        planned = self.at_server(PlanRun(profiles))
        self.plan = planned.text
        self.first_model = planned.result
        for device in devices:
            self.at(device, Prepare(self.plan))
            self.at(device, LoadModel(self.first_model, 0.0))

    def _loader(self, node: str, batch: int) -> Loader:
        rows = torch.arange(len(self.workload.dataset.train))
        return Loader(self.workload.dataset, rows, batch_size=batch, seed=SEED, node=node)

    def _name(self) -> PayloadId:
        self._jobs += 1
        return PayloadId(f"job/0/{self._jobs}")

    def at(self, device: str, job: Job) -> Outcome:
        return self.devices[device].execute(job, self._name())

    def at_server(self, job: Job) -> Outcome:
        return self.server.execute(job, self._name())

    def batch(self, step: int, device: str = "d") -> tuple[Tensor, Tensor]:
        return self.loaders[device].batch(step)


def state(engine: DeviceEngine) -> Tensors:
    """What the device would hand in now."""
    held = {n: t for n, t in engine.save()[1].items() if n.startswith("model.")}
    return {name.removeprefix("model."): tensor for name, tensor in held.items()}


def payload(**tensors: Tensor) -> Payload:
    return Payload(PayloadId("made/0/0"), sum(t.nbytes for t in tensors.values()), dict(tensors))


def same(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def close(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(
        torch.allclose(left[k], right[k], atol=1e-6) for k in left
    )


def sgd(**changes: object) -> OptimizerConfig:
    return PLAIN.model_copy(update=changes)


def whole(**changes: object) -> Bench:
    """A device that trains the whole model."""
    arguments = {"training": ServerTraining.NONE, "auxiliary": "none", **changes}
    return Bench(dense_model(), samples(), **arguments)  # type: ignore[arg-type]


def plain_steps(bench: Bench, steps: int, **optimizer: float | bool) -> Tensors:
    """The same as ``steps`` full steps, in plain torch."""
    model = deepcopy(bench.workload.model)
    sgd_ = torch.optim.SGD(model.parameters(), **{"lr": RATE, **optimizer})  # type: ignore[arg-type]
    for step in range(steps):
        inputs, labels = bench.batch(step)
        sgd_.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        sgd_.step()
    return model.state_dict()


def trained(bench: Bench, *steps: int) -> None:
    for step in steps:
        bench.at("d", Forward(step))
        bench.at("d", AuxiliaryStep(step))


def read_checkpoint(path: Path) -> Saved:
    return restore_checkpoint(path, torch.device("cpu"), lambda saved: saved)
