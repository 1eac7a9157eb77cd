"""Server memory for 4 to 32 devices: from the traces of dry runs, and with what training needs.

`python -m benchmarks.server_memory` writes docs/server-memory.md. In the first tables the fleet has
Testbed A's four speeds, an equal number of each; the data is noise of CIFAR-10's (VGG-5) and Tiny
ImageNet's (MobileNetV3-Large) size, because only sizes matter. The others are the paper's formulas
and what autograd and the optimiser add, for the splits of the paper's four tasks.
"""

from __future__ import annotations

import datetime
import itertools
import platform
from pathlib import Path

import torch

import fedoptima
from benchmarks.noise import images
from fedoptima.analysis.memory import TrainingMemory, training_memory
from fedoptima.core.plan import Plan
from fedoptima.experiments.dry_setup import prepare_dry
from fedoptima.experiments.given import Given
from fedoptima.paper_numbers import number
from fedoptima.preprocess.plan import make_plan
from fedoptima.preprocess.split import DeviceSpeed

METHODS: dict[str, dict[str, object]] = {
    "fedoptima, cap 4": {"name": "fedoptima", "activation_cap": 4},
    "fedoptima, cap 32": {"name": "fedoptima", "activation_cap": 32},
    **{name: {"name": name} for name in ("splitfed", "pipar", "oafl", "fl")},
    'fl, on_leave = "drop"': {"name": "fl", "on_leave": "drop"},
    **{name: {"name": name} for name in ("fedasync", "fedbuff")},
}
DEVICES = (4, 8, 16, 32)
TASKS = {
    "VGG-5, 32x32 images, batch 100": ("vgg5", 32, 100),
    "MobileNetV3-Large, 64x64 images, batch 100": ("mobilenet_v3_large", 64, 100),
}
RECIPES = {
    "A-image: VGG-5, CIFAR-10": "testbed_a_vgg5_cifar10",
    "B-image: MobileNetV3-Large, Tiny ImageNet": "testbed_b_mobilenet_tinyimagenet",
    "A-text: Transformer-6, SST-2": "testbed_a_transformer6_sst2",
    "B-text: Transformer-12, IMDB": "testbed_b_transformer12_imdb",
}
TRAINING_DEVICES = (4, 8, 16, 26, 32)  # 26: where the paper's OAFL reaches 8 GB on B-image
SERVER_BYTES, OAFL_MEMORY = 8e9, "b_image.memory.oafl"  # what the paper says about OAFL
TARGET = Path("docs/server-memory.md")


def peak(model: str, size: int, batch: int, method: dict[str, object], devices: int) -> float:
    """Peak MiB of model copies, buffered activations and updates that wait."""
    groups = [
        {"name": f"speed{i}", "count": devices // 4, "gflops": speed}
        for i, speed in enumerate((1.5, 3.0, 6.0, 9.0))
    ]
    result = fedoptima.simulate(
        model=model,
        data=images(samples=devices * 10 * batch, size=size),
        fleet={"server": {"gflops": 150.0}, "devices": groups},
        method=method,
        training={"batch_size": batch},
        stop={"rounds": 3},
        dry=True,
    )
    return result.summary.memory.total.peak / 2**20


class TrainedTask:
    """One of the paper's tasks, split as its recipe splits it."""

    def __init__(self, recipe: str, split: int | None = None) -> None:
        loaded = fedoptima.load_recipe(f"recipes/{recipe}.toml")
        prepared = prepare_dry(loaded, Given())
        assert prepared is not None
        speeds = [DeviceSpeed(d.flops_per_second, d.up) for d in prepared.fleet.devices.values()]
        settings = prepared.planner.settings
        costs = prepared.planner.costs
        split = split or make_plan(costs, speeds, settings).split
        self.batch = loaded.training.batch_size
        self.state = loaded.training.server.state_tensors
        self.plan = Plan(costs.blocks().blocks, split, "none", None, "paper", ())
        self.activation = self.plan.device_blocks[-1].output_bytes * self.batch

    def copies(self, devices: int, steps: int = 1) -> TrainingMemory:
        return self._memory(devices, devices, steps)

    def most_devices(self, *, formula: bool = False, at_once: bool = False) -> int:
        """That such a server works with, a copy for each."""
        for devices in itertools.count(1):
            held = self.copies(devices, steps=devices if at_once else 1)
            if (held.formula if formula else held.total) > SERVER_BYTES:
                return devices - 1
        raise AssertionError("never full")

    def shared(self, cap: int) -> TrainingMemory:
        return self._memory(0, cap, 1)

    def _memory(self, copies: int, waiting: int, steps: int) -> TrainingMemory:
        return training_memory(
            self.plan.server_blocks,
            batch=self.batch,
            activation=self.activation,
            waiting=waiting,
            copies=copies,
            state=self.state,
            steps=steps,
        )


HEAD = """# Server memory

Peak server memory in MiB: the global model, server sides (one, or one per device and
the merged one), waiting activation batches and waiting updates. The paper's formulas are
`(K + 1) model + K activations` with a copy per device (Eq. 2) and `model + omega activations` for
FedOptima (Eq. 3). How memory grows with the number of devices K:

- **FedOptima** grows until the cap is reached and no further, however many devices join (apart from
  a few small waiting updates). A fleet too small to fill a large cap stays below it. The default
  cap, `max(2 K, 32)`, itself grows with K from 17 devices on; a cap that you set does not. With a
  small model and few devices the default may hold more than K copies would (A-image below): set a
  smaller one where memory is short.
- **SplitFed, PiPar, OAFL** have a copy per device, so memory keeps growing with K.
- **FL** trains nothing on the server. Its barrier holds the sum of updates, in double precision,
  and does not grow with K ([0041](decisions/0041-updates-are-added-up.md)). With
  `on_leave = "drop"`, with PiPar's `"wait"` or with robust merging a barrier holds the K updates.
- **FedAsync, FedBuff** train nothing on the server. The buffer of FedBuff holds Z updates; updates
  that arrive together have to wait.

With [`method.reuse`](methods.md#activation-reuse) the server also keeps its last batches: at most
`reuse.batches` more (64 by default), in the form in which they arrived. They are counted with the
activations, as of the last reused batch; `memory.peak_kept` in `summary.json` is their share. The
tables here are without them.
"""

TRAINING = """## With gradients, optimiser state and autograd

The formulas leave out what training itself needs: the gradients of the weights, the optimiser's
state (one tensor for each weight with momentum, two with Adam), and what autograd keeps of a batch
between the forward and the backward pass. The last is counted as torch's saved-tensor hooks report
it, block by block (`saved_bytes` of `core/plan.py:BlockProfile`); attention runs through its plain
kernel for this, which keeps its weights (most of what Transformer-12 with its 50 heads has), while
a fused one computes them again. MiB, formula / all of it:

- *copies* (SplitFed, PiPar, OAFL): Eq. 2 for K devices; all of it: K optimisers, and gradients and
  graph of one step, because our server takes one step after the other.
- *copies at once*: the same, with the steps of all K devices in progress at the same time, as on a
  server that serves each device with a thread or process of its own.
- *fedoptima*: Eq. 3 with the cap omega = max(2 K, 32), the default, and with omega = 4.
"""

PAPER = """
The paper states that a server with 8 GB works with at most {paper:.0f} devices (OAFL, B-image,
{place}). With our split, after block {split}, 8 GB hold {formula} devices by Eq. 2 alone, {one}
with steps one after the other, and {at_once} with all steps at once. The paper does not say where
it cuts this model; with all steps at once, cuts after blocks 1 to {last} hold {cuts} devices. So
the copies that the formula counts do not explain the paper's figure. The graphs of steps in
progress, one for each device, could ({near} devices with a cut after block {near_split}),
but the paper does not say what it measured.
"""

FOOT = """
Produced by `python -m benchmarks.server_memory` on {date}: dry runs of 3 rounds, seed 1, fedoptima
{version}, torch {torch}, Python {python}. Only sizes and virtual times are involved, so the machine
does not matter.
"""


def table(columns: tuple[int, ...]) -> list[str]:
    head = "| | " + " | ".join(f"K = {k}" for k in columns) + " |"
    return ["", head, "|---|" + "---:|" * len(columns)]


def training_tables() -> list[str]:
    lines = [TRAINING]
    for title, recipe in RECIPES.items():
        task = TrainedTask(recipe)
        lines += [
            f"### {title}, batch {task.batch}",
            "",
            f"{len(task.plan.server_blocks)} of {len(task.plan.blocks)} blocks on the server.",
            *table(TRAINING_DEVICES),
        ]
        rows = {
            "copies": [task.copies(k) for k in TRAINING_DEVICES],
            "copies at once": [task.copies(k, steps=k) for k in TRAINING_DEVICES],
            "fedoptima, default cap": [task.shared(max(2 * k, 32)) for k in TRAINING_DEVICES],
            "fedoptima, cap 4": [task.shared(4) for k in TRAINING_DEVICES],
        }
        for name, held in rows.items():
            shown = [f"{m.formula / 2**20:.1f} / {m.total / 2**20:.1f}" for m in held]
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
            print(title, lines[-1], flush=True)
        lines.append("")
    lines.append(beside_the_paper())
    return lines


def beside_the_paper() -> str:
    recipe, stated = RECIPES["B-image: MobileNetV3-Large, Tiny ImageNet"], number(OAFL_MEMORY)
    assert stated.value is not None
    ours = TrainedTask(recipe)
    splits = range(1, ours.plan.split + 1)
    cuts = {split: TrainedTask(recipe, split).most_devices(at_once=True) for split in splits}
    near = min(splits, key=lambda split: abs(cuts[split] - stated.value))
    return PAPER.format(
        paper=stated.value,
        place=stated.place,
        split=ours.plan.split,
        formula=ours.most_devices(formula=True),
        one=ours.most_devices(),
        at_once=ours.most_devices(at_once=True),
        last=splits[-1],
        cuts=", ".join(map(str, cuts.values())),
        near=cuts[near],
        near_split=near,
    ).strip()


def main() -> None:
    lines = [HEAD]
    for title, (model, size, batch) in TASKS.items():
        lines += [f"## {title}", *table(DEVICES)]
        for name, method in METHODS.items():
            row = [f"{peak(model, size, batch, method, k):.1f}" for k in DEVICES]
            lines.append(f"| {name} | " + " | ".join(row) + " |")
            print(title, lines[-1], flush=True)
        lines.append("")
    lines += training_tables()
    foot = FOOT.format(
        date=datetime.date.today().isoformat(),
        version=fedoptima.__version__,
        torch=torch.__version__,
        python=platform.python_version(),
    )
    TARGET.write_text("\n".join(lines).rstrip() + "\n" + foot)
    print(f"written to {TARGET}")


if __name__ == "__main__":
    main()
