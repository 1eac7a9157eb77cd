"""Models that are not written for us, unchanged: split, trained, stored, resumed, deployed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedoptima import Interrupted, Result, replay, resume, simulate
from tests.preprocess.user_models import (
    CLASSES,
    LENGTH,
    WORDS,
    Efficient,
    LstmClassifier,
    PackedGruClassifier,
    UNet,
    bert,
    vision_transformer,
)
from tests.support.network import NAMES, Server, start_device, tiny_recipe

FLEET = {
    "server": {"gflops": 1.0},
    "devices": [{"name": "d", "count": 2, "gflops": 0.01, "mbps": 100.0}],
}
ADAM = {"name": "adam", "learning_rate": 0.02}


def sentences(count: int) -> tuple[Tensor, Tensor]:
    """Each class has words of its own."""
    random = torch.Generator().manual_seed(count)
    labels = torch.arange(count) % CLASSES
    third = (WORDS - 1) // CLASSES
    words = 1 + labels[:, None] * third + torch.randint(third, (count, LENGTH), generator=random)
    ends = torch.randint(3, LENGTH + 1, (count, 1), generator=random)
    return words * (torch.arange(LENGTH) < ends), labels


def masked(count: int) -> tuple[dict[str, Tensor], Tensor]:
    words, labels = sentences(count)
    return {"input_ids": words, "attention_mask": (words != 0).long()}, labels


def pictures(count: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(count)
    labels = torch.arange(count) % CLASSES
    ideal = torch.randn(CLASSES, 1, 8, 8, generator=torch.Generator().manual_seed(99))
    return ideal[labels] + 0.5 * torch.randn(count, 1, 8, 8, generator=random), labels


def trained(model: nn.Module, data: object, at: str, **changes: object) -> Result:
    make = {"words": sentences, "masked": masked, "pictures": pictures}[str(data)]
    usual: dict[str, object] = {
        "model": model,
        "train": make(120),
        "test": make(60),
        "data": {"partition": {"kind": "iid"}},
        "fleet": FLEET,
        "training": {"batch_size": 8, "device": ADAM, "server": ADAM},
        "split": {"at": at},
        "epochs": 2,
    }
    return simulate(**{**usual, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "data", "at", "method"),
    [
        (bert, "masked", "bert.encoder.layer.0", "splitfed"),
        (vision_transformer, "pictures", "vit.layers.0", "fedoptima"),
        (LstmClassifier, "words", "lstm", "fedoptima"),
        (PackedGruClassifier, "words", "gru", "fedoptima"),
    ],
)
def test_an_unchanged_model_is_split_and_learns(
    build: type, data: str, at: str, method: str
) -> None:
    torch.manual_seed(1)
    result = trained(build(), data, at, method=method)
    assert result.curve[-1].loss < math.log(CLASSES)  # that of a guess
    build().load_state_dict(result.weights)  # the whole model's names


@pytest.mark.parametrize("method", ["fedoptima", "splitfed"])
def test_a_u_net_is_split_through_its_branches_and_learns(method: str) -> None:
    torch.manual_seed(1)
    train, test = ((x, (x[:, 0] > 0).long()) for x, _ in (pictures(120), pictures(60)))
    result = trained(
        *(UNet(classes=2), "pictures", "down2"), train=train, test=test, method=method, task="dense"
    )
    assert result.curve[-1].loss < math.log(2)


def test_an_exported_model_is_the_same_in_worker_processes_and_after_an_interruption(
    tmp_path: Path,
) -> None:
    torch.manual_seed(1)
    model = Efficient()
    whole = trained(model, "pictures", "blocks.0")
    assert trained(model, "pictures", "blocks.0", workers=2).weights_digest == whole.weights_digest
    left = iter(range(60))
    with pytest.raises(Interrupted):
        trained(
            model,
            "pictures",
            "blocks.0",
            out=tmp_path,
            interrupted=lambda: next(left, None) is None,
        )
    given = {"model": model, "train": pictures(120), "test": pictures(60)}
    assert resume(tmp_path, **given).weights_digest == whole.weights_digest  # type: ignore[arg-type]
    assert replay(tmp_path, weights=True, **given).identical  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "at", "options"),
    [
        ("Efficient", "blocks.0", {"drop": 0.0}),
        pytest.param("PackedGruClassifier", "gru", {}, marks=pytest.mark.slow),
    ],
)
def test_a_server_and_its_devices_build_the_same_parts(
    tmp_path: Path, name: str, at: str, options: dict[str, float]
) -> None:
    data = "pictures" if name == "Efficient" else "words"
    recipe = tiny_recipe(
        "splitfed",
        # Nothing random: here all nodes draw from one generator, each on its thread.
        model={"name": f"tests.preprocess.user_models:{name}", **options},
        data={"name": f"{__name__}:{data}_data", "partition": {"kind": "iid"}},
        split={"at": at},
        stop={"rounds": 2},
    )
    with Server(recipe, tmp_path / "run") as server:
        devices = [start_device(name, server.address, tmp_path) for name in NAMES]
        result = server.result()
        for device in devices:
            device.answer()
    # Not bit by bit: while a device of this process measures, others compute with its kernels.
    simulated = simulate(recipe).weights
    assert simulated.keys() == result.weights.keys()
    for key, tensor in simulated.items():
        torch.testing.assert_close(result.weights[key], tensor, rtol=1e-4, atol=1e-5)


def pictures_data() -> tuple[object, object]:
    return pictures(48), pictures(24)


def words_data() -> tuple[object, object]:
    return sentences(48), sentences(24)
