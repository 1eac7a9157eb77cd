"""Models of others, unchanged: cut, compared with the whole, trained; the table in the docs.

    python -m tools.model_zoo                   all that are installed; prints the table
    python -m tools.model_zoo bert swin_t       these
    python -m tools.model_zoo --write           also renews their rows in docs/models.md

Each is trained for two epochs on scikit-learn's digits (resized; for models of text the 64 pixels
are words of 17 shades) by one device: whole (`fl`), cut with the server's gradients (`splitfed`,
the same training) and cut with FedOptima. What is not installed is named and left out. Where
torchvision is a CUDA build beside a CPU torch, --without-torchvision-ops lets it be imported.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

import fedoptima
from fedoptima.data.dataset import Split
from fedoptima.data.registry import load_dataset
from fedoptima.models.activation import call, map_tensors, tensors_of
from fedoptima.preprocess.cuts import cuttable

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
HEAD = (
    "| model | version | cut after | crosses, per sample | digits | whole | cut | FedOptima |",
    "|---|---|---|---|---|---|---|---|",
)
FLEET = {"server": {"gflops": 100.0}, "devices": [{"name": "device", "gflops": 10.0, "mbps": 1e3}]}
CLASSES, SHADES, PIXELS = 10, 17, 64
INK = 8  # of 16


@dataclass(frozen=True)
class Entry:
    build: Callable[[], nn.Module]
    inputs: Callable[[Tensor], object]  # from images with values of 0 to 16
    at: str
    package: str = "torch"
    rate: float = 1e-3
    by_pixel: bool = False  # where is ink? instead of: which digit is it?


def _images(side: int) -> Callable[[Tensor], Tensor]:
    def resized(digits: Tensor) -> Tensor:
        large = interpolate(digits.float() / 8 - 1, size=(side, side), mode="bilinear")
        return large.expand(-1, 3, -1, -1).contiguous()

    return resized


def _noisy(digits: Tensor) -> Tensor:
    """As they are, with noise."""
    random = torch.Generator().manual_seed(len(digits))
    return digits / 8 - 1 + 0.5 * torch.randn(digits.shape, generator=random)


def _words(digits: Tensor) -> Tensor:
    return digits.flatten(1).long() + 1


def _masked(digits: Tensor) -> dict[str, Tensor]:
    words = _words(digits)
    return {"input_ids": words, "attention_mask": (words > 1).long()}


def _torchvision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torchvision import models

        model: nn.Module = getattr(models, name)(num_classes=CLASSES)
        return model

    return build


def _timm(name: str, **options: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, num_classes=CLASSES, **options)
        return model

    return build


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    small = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    config = BertConfig(
        vocab_size=SHADES + 1, num_hidden_layers=4, max_position_embeddings=PIXELS, **small
    )
    config.num_labels = CLASSES
    model: nn.Module = BertForSequenceClassification(config)
    return model


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    small = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    config = ViTConfig(image_size=32, patch_size=8, num_hidden_layers=4, **small)
    config.num_labels = CLASSES
    model: nn.Module = ViTForImageClassification(config)
    return model


def _recurrent(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from tests.preprocess import user_models

        model: nn.Module = getattr(user_models, name)(words=SHADES + 1, width=64, classes=CLASSES)
        return model

    return build


def _unet() -> nn.Module:
    from tests.preprocess.user_models import UNet

    return UNet(classes=2)


ENTRIES: dict[str, Entry] = {
    "transformers BERT": Entry(_bert, _masked, "bert.encoder.layer.1", "transformers"),
    "transformers ViT": Entry(_vit, _images(32), "vit.layers.1", "transformers"),
    "LSTM": Entry(_recurrent("LstmClassifier"), _words, "lstm", rate=5e-3),
    "packed GRU": Entry(_recurrent("PackedGruClassifier"), _words, "gru", rate=5e-3),
    "U-Net": Entry(_unet, _noisy, "down2", rate=5e-3, by_pixel=True),
    "torchvision efficientnet_b0": Entry(
        _torchvision("efficientnet_b0"), _images(32), "features.2", "torchvision"
    ),
    "torchvision swin_t": Entry(_torchvision("swin_t"), _images(32), "features.1", "torchvision"),
    "torchvision convnext_tiny": Entry(
        _torchvision("convnext_tiny"), _images(32), "features.1", "torchvision"
    ),
    "torchvision regnet_y_400mf": Entry(
        _torchvision("regnet_y_400mf"), _images(32), "trunk_output.block1", "torchvision"
    ),
    "timm mobilenetv3_small_100": Entry(
        _timm("mobilenetv3_small_100"), _images(32), "blocks.1", "timm"
    ),
    "timm vit_tiny_patch16_224": Entry(
        _timm("vit_tiny_patch16_224", img_size=32, patch_size=8),
        _images(32),
        "blocks.2",
        "timm",
        rate=3e-4,
    ),
}


def without_torchvision_ops() -> object:
    """Operators of its extension that importing torchvision asks for; no classifier uses them."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def row_of(name: str, entry: Entry, samples: int) -> str:
    """A row of the table; raises if the parts are not the whole."""
    data = load_dataset("digits", directory=os.environ.get("FEDOPTIMA_DATA"))
    train, test = (
        (entry.inputs(split.inputs[:samples]), _labels(split, entry)[:samples])
        for split in (data.train, data.test)
    )
    torch.manual_seed(1)
    model = entry.build()
    crossing = _compared(model, map_tensors(test[0], lambda tensor: tensor[:3]), entry.at)
    optimizer = {"name": "adam", "learning_rate": entry.rate}
    shares = []
    for method in ("fl", "splitfed", "fedoptima"):
        result = fedoptima.simulate(
            model=deepcopy(model) if method == "fl" else model,
            train=train,
            test=test,
            data={"partition": {"kind": "iid"}},
            fleet=FLEET,
            method=method,
            training={"batch_size": 16, "device": optimizer, "server": optimizer},
            split={"at": entry.at},
            **({"task": "dense"} if entry.by_pixel else {}),
            epochs=2,
            workers=1,
        )
        shares.append(f"{100 * (result.accuracy or 0):.1f} %")
        print(f"{name}: {method}, two epochs of {samples} digits: {shares[-1]}", flush=True)
    tensors = " + ".join("x".join(map(str, shape)) for shape in crossing)
    cells = [name, version(entry.package), f"`{entry.at}`", tensors, str(samples), *shares]
    return f"| {' | '.join(cells)} |"


def _labels(split: Split, entry: Entry) -> Tensor:
    return (split.inputs[:, 0] >= INK).long() if entry.by_pixel else split.labels


def _compared(model: nn.Module, example: object, at: str) -> list[tuple[int, ...]]:
    """What crosses the cut, after trying that both parts give what the whole gives."""
    blocks = cuttable(model, map_tensors(example, lambda tensor: tensor[:2]), at)
    split = blocks.after(at)
    assert split is not None
    parts = deepcopy([blocks.part(0, split), blocks.part(split, len(blocks.names))])
    with torch.no_grad():
        crossing = call(parts[0].eval(), example)
        result = call(parts[1].eval(), crossing)
        expected = call(deepcopy(model).eval(), example)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    return [tuple(tensor.shape[1:]) for tensor in tensors_of(crossing)]


def renewed(page: str, rows: Iterable[str]) -> str:
    """The page with these rows of its table replaced or added."""
    before, table = page.split(HEAD[0], 1)
    lines = table.lstrip("\n").split("\n")
    count = next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))
    known = {_name(line): line for line in lines[1:count]}
    known |= {_name(row): row for row in rows}
    order = [name for name in ENTRIES if name in known]
    return before + "\n".join([*HEAD, *(known[name] for name in order), *lines[count:]])


def _name(row: str) -> str:
    return row.split("|")[1].strip()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", help="a part of the name; all by default")
    parser.add_argument("--samples", type=int, default=1442, help="digits to train on")
    parser.add_argument("--write", action="store_true", help="renew docs/models.md")
    parser.add_argument("--without-torchvision-ops", action="store_true")
    options = parser.parse_args(arguments)
    stubs = without_torchvision_ops() if options.without_torchvision_ops else None
    torch.set_num_threads(1)
    rows, failed = [], 0
    for name, entry in ENTRIES.items():
        if options.models and not any(part in name for part in options.models):
            continue
        try:
            version(entry.package)
        except PackageNotFoundError:
            print(f"{name}: left out, {entry.package} is not installed")
            continue
        try:
            rows.append(row_of(name, entry, options.samples))
        except Exception as error:  # whatever a model of others does; the next one is tried
            failed += 1
            print(f"{name}: FAILED: {type(error).__name__}: {error}")
            continue
        if options.write:
            PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    print("\n".join((*HEAD, *rows)))
    del stubs
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
