"""Which cheaper form of the auxiliary network learns best: what each costs, and what it comes to.

    python -m tools.auxiliary_forms [--samples 2000] [--epochs 6] [--seeds 1] [--device cpu]

FedOptima with VGG-5, cut after its first block, on the first images of CIFAR-10 and four devices
with links that nothing waits for: all forms train on the same number of batches on both sides.
Costs are FLOPs, forward and backward, relative to the device side.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

import fedoptima
from fedoptima.data.dataset import Split
from fedoptima.data.registry import load_dataset
from fedoptima.experiments.result import Result
from fedoptima.models.vgg5 import vgg5
from fedoptima.preprocess.auxiliary import build_auxiliary
from fedoptima.preprocess.profile import training_flops

Build = Callable[[Tensor, int], nn.Module]
FLEET = {
    "server": {"gflops": 10_000.0},
    "devices": [{"name": "d", "count": 4, "gflops": 3.0, "mbps": 100_000.0}],
}
RATE = {"learning_rate": 0.02, "momentum": 0.9}
TRAINING = {"batch_size": 50, "device": RATE, "server": RATE}


def form(activation: Tensor, classes: int, *, variant: str = "default", pool: int = 1) -> nn.Module:
    coarser = nn.AvgPool2d(pool)
    network = build_auxiliary(vgg5()[:1], coarser(activation), classes, variant)
    assert network is not None
    return nn.Sequential(OrderedDict(coarser=coarser, network=network))


def separable(activation: Tensor, classes: int) -> nn.Module:
    """The default's block, with its convolution in two: each channel by itself, then across."""
    network, channels = form(activation, classes), activation.shape[1]
    network.network.block1.conv = nn.Sequential(  # type: ignore[union-attr]
        nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
        nn.Conv2d(channels, channels, 1),
    )
    return network


FORMS: dict[str, Build] = {
    "default": form,
    "averages of 2 x 2": partial(form, pool=2),
    "averages of 3 x 3 (light)": partial(form, pool=3),
    "averages of 4 x 4": partial(form, pool=4),
    "depthwise separable": separable,
    "classifier": partial(form, variant="classifier"),
}


def run(build: Build, train: Split, test: Split, epochs: float, seed: int, device: str) -> Result:
    return fedoptima.simulate(
        model="vgg5",
        train=(train.tensor, train.labels),
        test=(test.tensor, test.labels),
        fleet=FLEET,
        method={"name": "fedoptima", "auxiliary": build},
        training=TRAINING,
        split={"at": 1},
        epochs=epochs,
        seed=seed,
        device=device,
        progress=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=float, default=6.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    data = load_dataset("cifar10")
    assert isinstance(data.train, Split)
    assert isinstance(data.test, Split)
    train, test = (
        Split(split.tensor[: given.samples] / 128 - 1.0, split.labels[: given.samples])
        for split in (data.train, data.test)
    )
    side, example = vgg5()[:1], train.tensor[:2]
    activation = side(example).detach()
    own = training_flops(side, example, input_gradient=False)
    print("| form | cost | best accuracy, by seed | seconds |\n|---|---:|---:|---:|")
    for name, build in FORMS.items():
        cost = training_flops(build(activation, 10), activation, input_gradient=True) / own
        seeds = range(1, given.seeds + 1)
        results = [run(build, train, test, given.epochs, seed, given.device) for seed in seeds]
        found = ", ".join(f"{result.best_accuracy:.1%}" for result in results)
        print(f"| {name} | {cost:.2f} | {found} | {results[0].seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
