"""What an epoch of simulated FedOptima costs on a GPU, against a bare loop of recorded graphs.

The loop does the same steps on data that is on the GPU: a stream and a CUDA graph for every
device (batch, crop, forward, auxiliary loss, backward, step), one for the server, events between
them, and a few activations on their way; the server takes the same share of the batches as in the
simulation. No clock, no messages, no merging, no checks, no evaluation: a floor.
The simulation's time is the difference between a long and a short run, so that its start, which a
run pays once, is left out.

    python -m benchmarks.gpu_epoch [--devices 8] [--rounds 5] [--device cuda]
    python -m benchmarks.gpu_epoch --recipe recipes/testbed_a_transformer6_sst2.toml --long 3

VGG-5 on images of noise in CIFAR-10's format, 6,250 for every device, batch 100, devices as fast
as those of Testbed A; or the model
and the data of a recipe, in equal shares, on its fleet.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.noise import images
from fedoptima.config.load import load_recipe, validate
from fedoptima.config.schema import Recipe
from fedoptima.engine.optimizer import build_optimizer
from fedoptima.engine.payloads import name_activation, rebuild_activation
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import Experiment, prepare
from fedoptima.experiments.simulated_run import run_experiment
from fedoptima.preprocess.sides import Sides
from fedoptima.preprocess.split import DeviceSpeed

SAMPLES, BATCH = 6250, 100  # of each device
AHEAD = 4  # activations of one device that may wait for the server
LONG = 16  # epochs, of the longer run

Step = Callable[[], None]


def build(device: str, devices: int, samples: int, epochs: int) -> Experiment:
    optimizer = {"learning_rate": 0.02, "nesterov": True, "weight_decay": 5e-4}
    recipe = {
        "name": "gpu-epoch",
        "device": device,
        "model": {"name": "vgg5"},
        "data": {"name": "noise", "partition": {"kind": "iid"}},
        "fleet": {
            "server": {"gflops": 150.0},
            # The speeds of Testbed A.
            "devices": [
                {
                    "name": f"device-{gflops:g}",
                    "count": devices // 4,
                    "gflops": gflops,
                    "mbps": 50.0,
                }
                for gflops in (1.5, 3.0, 6.0, 9.0)
            ],
        },
        "training": {
            "batch_size": BATCH,
            "device": optimizer,
            "server": optimizer,
            "evaluate_every": 1000.0,
        },
        "split": {"at": 1},
        "stop": {"epochs": epochs},
    }
    given = Given(dataset=images(samples=devices * samples))
    return prepare(validate(Recipe, recipe, "benchmark"), given)


def of_recipe(path: Path, device: str, epochs: float) -> Experiment:
    recipe = load_recipe(path)
    changed = recipe.model_dump(exclude_unset=True)
    changed["device"] = device
    changed["data"]["partition"] = {"kind": "iid"}
    changed["training"]["evaluate_every"] = 1000.0
    changed["stop"] = {"epochs": epochs}
    return prepare(validate(Recipe, changed, str(path)), Given())


class BareLoop:
    """The steps of an epoch, recorded."""

    def __init__(self, experiment: Experiment) -> None:
        self._workload = experiment.workload
        self._compute = self._workload.compute
        devices = len(experiment.shares)
        fleet = experiment.fleet.devices.values()
        plan = self._workload.plan([DeviceSpeed(s.flops_per_second, s.up) for s in fleet])
        self._settings = self._workload.device_optimizer
        self._sides = [self._workload.sides(plan) for _ in range(devices)]
        self.size = experiment.recipe.training.batch_size
        self.steps = min(len(rows) for rows in experiment.shares.values()) // self.size
        self._rows = [
            torch.as_tensor(rows, device=self._compute)[: self.steps * self.size]
            for rows in experiment.shares.values()
        ]
        augment, count = self._workload.dataset.augment, self.steps * self.size
        self._crops = None if augment is None else augment.draw(count, seed=1).to(self._compute)
        self._streams = self._new_streams(devices + 1)
        counter = torch.zeros(1, dtype=torch.int64, device=self._compute)
        # Of every device its last few activations, and how often it and the server have stepped.
        self._rings: list[dict[str, Tensor]] = []
        self._counters = [counter.clone() for _ in range(2 * devices)]
        self._device_steps: list[Step] = []
        for number, sides in enumerate(self._sides):
            inputs, labels = self._batch(number)
            given = {**name_activation(sides.device(inputs)), "labels": labels}
            self._rings.append(
                {
                    name: tensor.repeat(AHEAD, *[1] * (tensor.dim() - 1))
                    for name, tensor in _one(given)
                }
            )
            self._device_steps.append(self._recorded(number, self._device_step(number, sides)))
        server = self._sides[0]
        assert server.server is not None
        server.server.train()
        self._optimizer = self._optimizer_of(list(server.server.parameters()))
        self._server_steps = [
            self._recorded(devices, self._server_step(number, server)) for number in range(devices)
        ]

    @property
    def samples(self) -> int:
        """That the devices train on in an epoch."""
        return self.steps * self.size * len(self._device_steps)

    def epoch(self, share: float = 1.0) -> None:
        """``share``: of the batches that train the server side."""
        devices = len(self._device_steps)
        if self._compute.type != "cuda":
            for step in range(self.steps):
                for number in range(devices):
                    self._device_steps[number]()
                    if _due(step, share):
                        self._server_steps[number]()
            return
        streams, server = self._streams[:-1], self._streams[-1]
        used = [[torch.cuda.Event() for _ in range(AHEAD)] for _ in streams]  # type: ignore[no-untyped-call]
        made = [[torch.cuda.Event() for _ in range(AHEAD)] for _ in streams]  # type: ignore[no-untyped-call]
        for step in range(self.steps):
            slot = step % AHEAD
            for number, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    stream.wait_event(used[number][slot])
                    self._device_steps[number]()
                    made[number][slot].record(stream)
                if not _due(step, share):
                    continue
                with torch.cuda.stream(server):
                    server.wait_event(made[number][slot])
                    self._server_steps[number]()
                    used[number][slot].record(server)
        torch.cuda.synchronize()

    # ---- steps -------------------------------------------------------------------------------

    def _batch(self, number: int) -> tuple[Tensor, Tensor]:
        split, dataset = self._workload.dataset.train, self._workload.dataset
        within = torch.arange(self.size, device=self._compute)
        places = self._counters[2 * number] % self.steps * self.size + within
        rows = self._rows[number].index_select(0, places)
        inputs = split.inputs.index_select(0, rows)
        if dataset.augment is not None and self._crops is not None:
            inputs = dataset.augment(inputs, self._crops.index_select(0, places))
        return dataset.prepare(inputs), split.labels.index_select(0, rows)

    def _device_step(self, number: int, sides: Sides) -> Step:
        assert sides.auxiliary is not None
        auxiliary = sides.auxiliary.train()
        device = sides.device.train()
        parameters = [*device.parameters(), *auxiliary.parameters()]
        optimizer = self._optimizer_of(parameters)

        def step() -> None:
            inputs, labels = self._batch(number)
            output = device(inputs)
            slot = self._counters[2 * number] % AHEAD
            for name, tensor in _one({**name_activation(output), "labels": labels}):
                self._rings[number][name].index_copy_(0, slot, tensor)
            self._workload.loss(auxiliary(output), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            for parameter in parameters:
                parameter.grad = None
            self._counters[2 * number] += 1

        return step

    def _server_step(self, number: int, sides: Sides) -> Step:
        assert sides.server is not None
        server = sides.server

        def step() -> None:
            slot = self._counters[2 * number + 1] % AHEAD
            tensors = {
                name: ring.index_select(0, slot)[0] for name, ring in self._rings[number].items()
            }
            output = server(rebuild_activation(tensors, sides.activation))
            self._workload.loss(output, tensors["labels"]).backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            for parameter in server.parameters():
                parameter.grad = None
            self._counters[2 * number + 1] += 1

        return step

    def _optimizer_of(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return build_optimizer(self._settings, list(parameters), fused=self._compute.type == "cuda")

    # ---- graphs ------------------------------------------------------------------------------

    def _new_streams(self, count: int) -> list[torch.cuda.Stream]:
        if self._compute.type != "cuda":
            return []
        return [torch.cuda.Stream(self._compute) for _ in range(count)]  # type: ignore[no-untyped-call]

    def _recorded(self, number: int, step: Step) -> Step:
        if self._compute.type != "cuda":
            return step
        stream = self._streams[number]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries prepare themselves at their first calls
                step()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            step()
            graph.capture_end()
        torch.cuda.synchronize()
        return graph.replay


def _due(step: int, share: float) -> bool:
    return int((step + 1) * share) > int(step * share)


def _one(tensors: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    """With a dimension for the place in the ring."""
    return [(name, tensor.detach()[None]) for name, tensor in tensors.items()]


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(
    device: str = "cuda",
    *,
    devices: int = 8,
    samples: int = SAMPLES,
    rounds: int = 5,
    recipe: Path | None = None,
    long: int = LONG,
) -> dict[str, object]:
    short = max(1, long // 4)
    runs = {
        epochs: of_recipe(recipe, device, epochs)
        if recipe is not None
        else build(device, devices, samples, epochs)
        for epochs in (long, short)
    }
    devices = len(runs[long].shares)
    loop = BareLoop(runs[short])
    loop.epoch()
    run_experiment(runs[short])
    results = {epochs: run_experiment(run, dry=True) for epochs, run in runs.items()}
    trained = results[long].device_samples - results[short].device_samples
    share = (results[long].server_samples - results[short].server_samples) / trained
    floors, simulated = list[float](), list[float]()
    for _ in range(rounds):
        floors.append(timed(lambda: loop.epoch(share)) * trained / loop.samples / (long - short))
        seconds = {
            epochs: timed(lambda run=run: run_experiment(run)) for epochs, run in runs.items()
        }
        simulated.append((seconds[long] - seconds[short]) / (long - short))
    ratios = [ours / floor for ours, floor in zip(simulated, floors, strict=True)]
    return {
        "what": f"an epoch of simulated FedOptima, {recipe.stem if recipe else 'VGG-5'}, "
        f"{devices} devices, against recorded graphs",
        "samples of an epoch": trained / (long - short),
        "share that the server trains on": share,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "simulated seconds": simulated,
        "floor seconds": floors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--devices", type=int, default=8, help="a multiple of 4")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each device")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recipe", type=Path, help="instead of images of noise")
    parser.add_argument("--long", type=int, default=LONG, help="epochs of the longer run")
    asked = parser.parse_args()
    found = measure(
        asked.device,
        devices=asked.devices,
        samples=asked.samples,
        rounds=asked.rounds,
        recipe=asked.recipe,
        long=asked.long,
    )
    for key, value in found.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()
