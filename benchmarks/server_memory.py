"""Server memory for 4 to 32 devices, from the traces of dry runs.

`python -m benchmarks.server_memory` writes docs/server-memory.md. The fleet has Testbed A's four
speeds, an equal number of each; the data is noise of CIFAR-10's (VGG-5) and Tiny ImageNet's
(MobileNetV3-Large) size, because only sizes matter.
"""

from __future__ import annotations

import datetime
import platform
from pathlib import Path

import torch

import fedoptima
from benchmarks.noise import images

METHODS: dict[str, dict[str, object]] = {
    "fedoptima, cap 4": {"name": "fedoptima", "activation_cap": 4},
    "fedoptima, cap 32": {"name": "fedoptima", "activation_cap": 32},
    **{name: {"name": name} for name in ("splitfed", "pipar", "oafl", "fl", "fedasync", "fedbuff")},
}
DEVICES = (4, 8, 16, 32)
TASKS = {
    "VGG-5, 32x32 images, batch 100": ("vgg5", 32, 100),
    "MobileNetV3-Large, 64x64 images, batch 100": ("mobilenet_v3_large", 64, 100),
}
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


HEAD = """# Server memory

Peak of what the server holds, in MiB: the global model, server sides (one, or one per device and
the merged one), activation batches and updates that wait.

The paper's formulas: `(K + 1) model + K activations` with a copy per device (Eq. 2), `model + omega
activations` for FedOptima (Eq. 3). FedOptima's memory grows until the cap is reached, and no
further, however many devices join (a few small updates that wait aside); a fleet too small to fill
a large cap stays below it. The methods with a copy per device grow with K for ever. FL, FedAsync
and FedBuff train nothing on the server, but a barrier holds K whole models, a buffer Z, and updates
that arrive together wait.
"""

FOOT = """
Made by `python -m benchmarks.server_memory` on {date}: dry runs of 3 rounds, seed 1, fedoptima
{version}, torch {torch}, Python {python}. Sizes and virtual times only: the machine does not
matter.
"""


def main() -> None:
    lines = [HEAD]
    for title, (model, size, batch) in TASKS.items():
        lines += [f"## {title}", "", "| | " + " | ".join(f"K = {k}" for k in DEVICES) + " |"]
        lines.append("|---|" + "---:|" * len(DEVICES))
        for name, method in METHODS.items():
            row = [f"{peak(model, size, batch, method, k):.1f}" for k in DEVICES]
            lines.append(f"| {name} | " + " | ".join(row) + " |")
            print(title, lines[-1], flush=True)
        lines.append("")
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
