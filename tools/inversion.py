"""What activations give away: a decoder is trained to turn them into the images they were made of.

    python -m tools.inversion --device cuda --data DIR --out results/inversion
    python -m tools.inversion --out results/inversion --record docs/security.md  # no training

FedOptima trains VGG-5 on CIFAR-10 once for each cut. Then the server attacks: it has the device
side, as it has every device's model, makes activations of images of the same kind (the training
images), and trains a decoder to invert them, one for each cut, codec and level of noise. Judged by
test images, which neither has seen, in structural similarity (SSIM; 1: the same image). Noise is
Gaussian, added by the device before coding; its level is a multiple of the standard deviation of
the activations. What it costs in accuracy is measured with a server side that trains on with it.

Writes inversion.json after every decoder and inversion.png. With --record the table and the picture
are put into a document instead, between its marks.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedoptima
from fedoptima.core.codecs import Codec
from fedoptima.data.dataset import Split
from fedoptima.data.registry import load_dataset
from fedoptima.engine.codecs import decode, encode
from fedoptima.models.vgg5 import vgg5
from tools.records import ROOT, Record, origin, save

FLEET = {
    "server": {"gflops": 10_000.0},
    "devices": [{"name": "d", "count": 4, "gflops": 3.0, "mbps": 100_000.0}],
}
RATE = {"learning_rate": 0.02, "momentum": 0.9, "weight_decay": 5e-4}
TRAINING = {"batch_size": 100, "device": RATE, "server": RATE, "schedule": {"kind": "cosine"}}
BATCH = 256  # of the decoder's training, unless there are fewer images
SHOWN = 8  # images in the picture
BEGIN, END = "<!-- inversion: begin -->", "<!-- inversion: end -->"


@dataclass(frozen=True)
class Images:
    """Values from 0 to 1."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    @staticmethod
    def cifar10(directory: str | None, device: str) -> Images:
        data = load_dataset("cifar10", directory=directory)
        splits = [cast(Split, split) for split in (data.train, data.test)]
        (train, labels), (test, others) = (
            ((s.tensor / 255).to(device), s.labels.to(device)) for s in splits
        )
        return Images(train, labels, test, others)


# ---- similarity ----------------------------------------------------------------------------------


def ssim(one: Tensor, other: Tensor, *, window: int = 11, sigma: float = 1.5) -> Tensor:
    """Of each image (Wang et al., 2004): a Gaussian window in every place where it fits, values
    from 0 to 1, the mean over places and channels."""
    channels = one.shape[1]
    place = torch.arange(window, device=one.device, dtype=one.dtype) - (window - 1) / 2
    weights = torch.exp(-(place**2) / (2 * sigma**2))
    weights = torch.outer(weights, weights) / weights.sum() ** 2
    kernel = weights.expand(channels, 1, window, window).contiguous()

    def blurred(images: Tensor) -> Tensor:
        return F.conv2d(images, kernel, groups=channels)

    mean, other_mean = blurred(one), blurred(other)
    variance = blurred(one * one) - mean**2
    other_variance = blurred(other * other) - other_mean**2
    covariance = blurred(one * other) - mean * other_mean
    c1, c2 = 0.01**2, 0.03**2
    likeness = (2 * mean * other_mean + c1) * (2 * covariance + c2)
    scale = (mean**2 + other_mean**2 + c1) * (variance + other_variance + c2)
    return (likeness / scale).mean((1, 2, 3))


# ---- what the server receives --------------------------------------------------------------------


@dataclass(frozen=True)
class Sender:
    """A device: its blocks, and the form in which it sends their activations."""

    blocks: nn.Module
    codec: Codec
    noise: float  # standard deviation, in the activations' own unit
    draws: torch.Generator

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        sent: Tensor = self.blocks(images * 2 - 1)
        if self.noise:
            drawn = torch.randn(sent.shape, generator=self.draws, device=sent.device)
            sent = sent + self.noise * drawn
        return decode(encode({"": sent}, [""], self.codec), [""], self.codec)[""]


class Decoder(nn.Module):
    """From activations to an image: convolutions, doubled in size until it is the image's."""

    def __init__(self, activation: Tensor, size: int, width: int = 64) -> None:
        super().__init__()
        self.flat = activation.dim() == 2
        channels, side = (width, size // 4) if self.flat else activation.shape[1:3]
        layers: list[nn.Module] = []
        if self.flat:
            layers += [nn.Linear(activation.shape[1], width * side * side), nn.ReLU()]
            layers += [nn.Unflatten(1, (width, side, side))]
        layers += _convolution(channels, width)
        while side < size:
            layers += [nn.Upsample(scale_factor=2), *_convolution(width, width)]
            side *= 2
        layers += [*_convolution(width, width), nn.Conv2d(width, 3, 3, padding=1), nn.Sigmoid()]
        self.layers = nn.Sequential(*layers)

    def forward(self, activation: Tensor) -> Tensor:
        return cast(Tensor, self.layers(activation))


def _convolution(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]


# ---- the attack, and what noise costs ------------------------------------------------------------


def trained(images: Images, cut: int, epochs: float, seed: int, device: str) -> nn.Sequential:
    result = fedoptima.simulate(
        model="vgg5",
        train=(images.train.cpu() * 2 - 1, images.train_labels.cpu()),
        test=(images.test.cpu() * 2 - 1, images.test_labels.cpu()),
        fleet=FLEET,
        training=TRAINING,
        split={"at": cut},
        epochs=epochs,
        seed=seed,
        device=device,
        progress=False,
    )
    return cast(nn.Sequential, result.load_into(vgg5()).to(device).eval())


def invert(sender: Sender, images: Images, steps: int, seed: int) -> tuple[float, Tensor]:
    """The mean similarity of test images and what is made of their activations, and the first."""
    torch.manual_seed(seed)
    device = images.train.device
    decoder = Decoder(sender(images.train[:2]), images.train.shape[-1]).to(device)
    optimiser = torch.optim.Adam(decoder.parameters(), fused=True)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    for rows in _batches(len(images.train), steps, device, seed):
        wanted = images.train[rows]
        made = decoder(sender(wanted))
        loss = F.mse_loss(made, wanted) + F.l1_loss(made, wanted)  # the second for sharper edges
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rates.step()
    decoder.eval()
    with torch.no_grad():
        made = torch.cat([decoder(sender(part)) for part in images.test.split(1000)])
    return float(ssim(made, images.test).mean()), made[:SHOWN].cpu()


def accuracy_with(
    model: nn.Sequential, cut: int, sender: Sender, images: Images, steps: int, seed: int
) -> float:
    """Of the server side after as many further steps on what the device sends, on what it sends."""
    server = vgg5()
    server.load_state_dict(model.state_dict())
    server = server[cut:].to(images.train.device).train()
    optimiser = torch.optim.SGD(server.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for rows in _batches(len(images.train), steps, images.train.device, seed):
        loss = F.cross_entropy(server(sender(images.train[rows])), images.train_labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rates.step()
    server.eval()
    with torch.no_grad():
        said = torch.cat([server(sender(part)).argmax(1) for part in images.test.split(1000)])
    return float((said == images.test_labels).float().mean())


def _batches(samples: int, steps: int, device: torch.device, seed: int) -> Iterator[Tensor]:
    draws = torch.Generator(device).manual_seed(seed)
    for _ in range(steps):
        yield torch.randint(samples, (min(BATCH, samples),), generator=draws, device=device)


def study(
    images: Images,
    cuts: Sequence[int],
    codecs: Sequence[Codec],
    levels: Sequence[float],
    *,
    epochs: float,
    steps: int,
    seed: int,
    device: str,
) -> Iterator[tuple[Record, Tensor]]:
    """A row for each cut, codec and level of noise, and the first images made of activations."""
    for cut in cuts:
        model = trained(images, cut, epochs, seed, device)
        blocks = model[:cut]
        with torch.no_grad():
            spread = float(blocks(images.train[:2000] * 2 - 1).std())
        for level in levels:
            for codec in codecs:
                draws = torch.Generator(device).manual_seed(seed)
                sender = Sender(blocks, codec, level * spread, draws)
                similarity, made = invert(sender, images, steps, seed)
                row: Record = {"cut": cut, "codec": codec, "noise": level}
                row |= {"ssim": round(similarity, 4)}
                if codec == "float32":
                    reached = accuracy_with(model, cut, sender, images, steps, seed)
                    row["accuracy"] = round(reached, 4)
                yield row, made


# ---- what is written -----------------------------------------------------------------------------


def picture(rows: Sequence[tuple[str, Tensor]], file: Path, scale: int = 2) -> None:
    """One line of images for each name."""
    from PIL import Image, ImageDraw

    size, margin = rows[0][1].shape[-1] * scale, 150
    shape = (margin + SHOWN * (size + 2), len(rows) * (size + 2))
    sheet = Image.new("RGB", shape, "white")
    pen = ImageDraw.Draw(sheet)
    for line, (name, images) in enumerate(rows):
        top = line * (size + 2)
        pen.text((4, top + size // 2 - 6), name, fill="black")
        values = (images.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy()
        for place, value in enumerate(values):
            image = Image.fromarray(value).resize((size, size), Image.Resampling.NEAREST)
            sheet.paste(image, (margin + place * (size + 2), top))
    sheet.save(file, optimize=True)


def is_shown(row: Record) -> bool:
    """In the picture: how much noise changes is shown for the smallest form."""
    return bool(row["codec"] == "int8" or (row["codec"] == "float32" and not row["noise"]))


def table(record: Record) -> list[str]:
    """Markdown: a line for each cut and level of noise, a column for each codec."""
    rows = record["rows"]
    codecs = list(dict.fromkeys(row["codec"] for row in rows))
    lines = [f"| cut after | noise | {' | '.join(f'SSIM, {c}' for c in codecs)} | accuracy |"]
    lines += [f"|---|---:|{'---:|' * (len(codecs) + 1)}"]
    for cut, noise in dict.fromkeys((row["cut"], row["noise"]) for row in rows):
        own = {row["codec"]: row for row in rows if (row["cut"], row["noise"]) == (cut, noise)}
        found = [f"{own[c]['ssim']:.2f}" if c in own else "" for c in codecs]
        reached = [row["accuracy"] for row in own.values() if "accuracy" in row]
        accuracy = f"{reached[0]:.1%}" if reached else ""
        lines.append(f"| block {cut} | {noise:g} | {' | '.join(found)} | {accuracy} |")
    return lines


def put(record: Record, image: Path, document: Path) -> None:
    """The table, the picture if there is one, and their origin, between the document's marks."""
    about = ("command", "seed", "date", "fedoptima", "python", "torch", "machine", "seconds")
    text = [*table(record), "", f"The mean of all test images alone: {record['mean image']:.2f}."]
    if image.exists():
        shutil.copy(image, document.parent / "images" / image.name)
        text += ["", f"![Images, and what was made of their activations](images/{image.name})"]
    text += ["", ", ".join(f"{key}: {record[key]}" for key in about)]
    before, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    if not (rest and after):
        raise SystemExit(f"{document}: has no lines {BEGIN} and {END} to write between")
    document.write_text(before + "\n".join([BEGIN, *text, END]) + after, encoding="utf-8")


def main(arguments: Sequence[str] | None = None, images: Images | None = None) -> None:
    said = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(said)
    file: Path = given.out / "inversion.json"
    if given.record:
        put(json.loads(file.read_text(encoding="utf-8")), file.with_suffix(".png"), given.record)
        return
    began = time.monotonic()
    images = images or Images.cifar10(given.data, given.device)
    record = origin("tools.inversion", said, given.device, given.commit)
    mean = images.train.mean(0, keepdim=True).expand_as(images.test)
    record |= {"seed": given.seed, "epochs": given.epochs, "steps": given.steps}
    record |= {"mean image": round(float(ssim(mean, images.test).mean()), 4), "rows": []}
    shown = [("image", images.test[:SHOWN].cpu())]
    for row, made in study(
        images, given.cuts, given.codecs, given.noise,
        epochs=given.epochs, steps=given.steps, seed=given.seed, device=given.device,
    ):  # fmt: skip
        record["rows"].append(row)
        record["seconds"] = round(time.monotonic() - began, 1)
        told = f"block {row['cut']}, {row['codec']}" + (
            f", noise {row['noise']:g}" if row["noise"] else ""
        )
        if is_shown(row):
            shown.append((told, made))
        save(record, file, f"{told}: SSIM {row['ssim']:.3f}, {record['seconds']} s")
    picture(shown, file.with_suffix(".png"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.inversion",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "inversion")
    parser.add_argument("--record", type=Path, help="put what is in --out into this document")
    parser.add_argument("--cuts", type=int, nargs="+", default=[1, 2, 3, 4], help="blocks")
    codecs = get_args(Codec)
    parser.add_argument("--codecs", nargs="+", default=list(codecs), choices=codecs)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.5, 2.0])
    parser.add_argument("--epochs", type=float, default=10.0, help="of VGG-5")
    parser.add_argument("--steps", type=int, default=700, help="of each decoder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commit", help="where git cannot tell")
    return parser


if __name__ == "__main__":
    main()
