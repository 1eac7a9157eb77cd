from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedoptima.data.augment import CIFAR10, MNIST, CropAndFlip, HideWords
from fedoptima.data.vocabulary import PADDING, UNKNOWN


def windows(image: Tensor, padding: int, flip: bool) -> list[Tensor]:
    """Every outcome that is allowed, by plain slicing."""
    _, height, width = image.shape
    padded = F.pad(image, (padding,) * 4)
    crops = [
        padded[:, top : top + height, left : left + width]
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
    ]
    return crops + [crop.flip(-1) for crop in crops] if flip else crops


def augmented(augment: CropAndFlip, images: Tensor, seed: int) -> Tensor:
    return augment(images, augment.draw(len(images), seed).to(images.device))


@settings(max_examples=25, deadline=None)
@given(
    padding=st.integers(0, 3),
    flip=st.booleans(),
    height=st.integers(3, 6),
    width=st.integers(3, 6),
    channels=st.integers(1, 3),
    seed=st.integers(0, 2**63 - 1),
)
def test_each_output_is_a_window_of_its_own_padded_image(
    padding, flip, height, width, channels, seed
):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(1, 256, (5, channels, height, width), generator=generator)
    images = images.to(torch.uint8)
    before = images.clone()
    outputs = augmented(CropAndFlip(padding, flip), images, seed)
    assert outputs.dtype == torch.uint8
    assert torch.equal(images, before)
    for image, output in zip(images, outputs, strict=True):
        assert any(torch.equal(output, window) for window in windows(image, padding, flip))


def test_every_window_and_its_mirror_image_comes_up():
    image = torch.arange(1, 17, dtype=torch.uint8).view(1, 4, 4)
    outputs = augmented(CropAndFlip(padding=1, flip=True), image.expand(600, 1, 4, 4), 3)
    seen = {tuple(output.flatten().tolist()) for output in outputs}
    assert seen == {tuple(w.flatten().tolist()) for w in windows(image, 1, flip=True)}


def test_the_seed_alone_decides():
    images = torch.randint(0, 256, (100, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    first = augmented(CIFAR10, images, 5)
    torch.manual_seed(2)
    assert torch.equal(augmented(CIFAR10, images, 5), first)
    assert not torch.equal(augmented(CIFAR10, images, 6), first)


def test_augmenting_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    augmented(MNIST, torch.zeros(2, 1, 28, 28, dtype=torch.uint8), 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_digits_are_never_mirrored():
    left_half = torch.zeros(200, 1, 28, 28, dtype=torch.uint8)
    left_half[..., 4:12] = 1
    assert int(augmented(MNIST, left_half, 1)[..., 16:].sum()) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_makes_the_same_crops():
    images = torch.randint(0, 256, (100, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(augmented(CIFAR10, images.cuda(), 9).cpu(), augmented(CIFAR10, images, 9))


def test_hidden_words_are_unknown_and_everything_else_stays():
    texts = torch.arange(2, 42, dtype=torch.int32).repeat(500, 1)
    texts[:, 30:] = PADDING
    before = texts.clone()
    hide = HideWords(0.1, 40)
    drawn = hide.draw(len(texts), 7)
    changed = hide(texts, drawn)
    assert changed.dtype == torch.int32
    assert torch.equal(texts, before)
    assert torch.equal(changed[:, 30:], texts[:, 30:]), "padding is no word"
    hidden = changed != texts
    assert set(changed[hidden].tolist()) == {UNKNOWN}
    assert 0.08 < float(hidden[:, :30].float().mean()) < 0.12
    assert torch.equal(drawn, hide.draw(len(texts), 7))
    assert not torch.equal(drawn, hide.draw(len(texts), 8))
