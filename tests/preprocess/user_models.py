"""Models as users write them or find them elsewhere, most of which torch.fx cannot trace."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

WORDS, LENGTH, CLASSES = 40, 12, 3


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        num_labels=CLASSES,
    )
    model: nn.Module = BertForSequenceClassification(config)
    return model


def vision_transformer() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=CLASSES,
    )
    model: nn.Module = ViTForImageClassification(config)
    return model


class LstmClassifier(nn.Module):
    def __init__(self, words: int = WORDS, width: int = 12, classes: int = CLASSES) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 8)
        self.lstm = nn.LSTM(8, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        _, (last, _) = self.lstm(self.embedding(words))
        return self.head(last[-1])


class PackedGruClassifier(nn.Module):
    """Computes no further than to a sentence's end, which is a matter of its values."""

    def __init__(self, words: int = WORDS, width: int = 12, classes: int = CLASSES) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 8, padding_idx=0)
        self.gru = nn.GRU(8, width, batch_first=True)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        lengths = (words != 0).sum(dim=1).clamp(min=1).cpu()
        packed = pack_padded_sequence(
            self.embedding(words), lengths, batch_first=True, enforce_sorted=False
        )
        _, last = self.gru(packed)
        return self.head(functional.relu(self.hidden(last[-1])))


class UNet(nn.Module):
    """One class for each pixel; every level of the way down is used on the way up."""

    def __init__(self, channels: int = 1, classes: int = CLASSES) -> None:
        super().__init__()
        self.down1, self.down2 = _double(channels, 4), _double(4, 8)
        self.bottom = _double(8, 16)
        self.up2 = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.merge2 = _double(16, 8)
        self.up1 = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.merge1 = _double(8, 4)
        self.head = nn.Conv2d(4, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        assert images.shape[2] % 4 == 0, "sides must be divisible by 4"
        first = self.down1(images)
        second = self.down2(functional.max_pool2d(first, 2))
        bottom = self.bottom(functional.max_pool2d(second, 2))
        up = self.merge2(torch.cat([self.up2(bottom), second], dim=1))
        return self.head(self.merge1(torch.cat([self.up1(up), first], dim=1)))


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class Efficient(nn.Module):
    """What torchvision's and timm's networks do: read the mode, assert shapes."""

    def __init__(self, drop: float = 0.2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.blocks = nn.ModuleList([Dropped(6, drop), Dropped(6, drop), Dropped(6, drop)])
        self.head = nn.Linear(6, CLASSES)
        self.unused = nn.Linear(2, 2)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[0] == 0 or images.shape[1] != 1:
            raise ValueError("one channel, please")
        images = self.stem(images)
        for block in self.blocks:
            images = block(images)
        return self.head(images.mean((2, 3)))


class Dropped(nn.Module):
    """A residual that training leaves out now and then, for each sample by itself."""

    def __init__(self, channels: int, drop: float) -> None:
        super().__init__()
        self.drop = drop
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, images: Tensor) -> Tensor:
        changed = functional.relu_(self.norm(self.conv(images)))
        if self.training and self.drop:
            share = 1 - self.drop
            kept = torch.empty(images.shape[0], 1, 1, 1).bernoulli_(share).div_(share)
            changed = changed * kept
        return images + changed


def words(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    made = torch.randint(1, WORDS, (count, LENGTH), generator=generator)
    ends = torch.randint(3, LENGTH + 1, (count, 1), generator=generator)
    return made * (torch.arange(LENGTH) < ends)


def words_and_mask(count: int) -> dict[str, Tensor]:
    made = words(count)
    return {"input_ids": made, "attention_mask": (made != 0).long()}


def images(count: int, side: int = 8) -> Tensor:
    return torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(5))
