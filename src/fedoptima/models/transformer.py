"""Transformer encoders for text: token ids (batch, length) in, logits out, 0 is padding.

The padding mask travels with the hidden states (``Masked``), so any block may be the last of the
device side. The embedding and the first encoder layer are one block: cut between them, the device
would hold a table and the auxiliary network would have no layer type to copy.

The layers normalise before they transform. Twelve layers that normalise afterwards need a learning
rate warm-up, which a device that joins late or merges asynchronously does not get.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import Masked
from fedoptima.models.attention import attention
from fedoptima.models.checks import at_least

PADDING = 0


def transformer(
    *,
    layers: int,
    heads: int,
    embedding: int = 100,
    hidden: int = 100,
    vocabulary: int,
    length: int,
    classes: int,
    dropout: float = 0.1,
) -> nn.Sequential:
    """An encoder of ``layers`` layers, masked mean pooling and a dense classifier."""
    at_least(1, "transformer", layers=layers, heads=heads, embedding=embedding, hidden=hidden)
    at_least(1, "transformer", vocabulary=vocabulary, length=length, classes=classes)
    if embedding % heads:
        raise ConfigError(
            f"model transformer: heads = {heads}: must divide embedding = {embedding}"
        )
    if not 0.0 <= dropout < 1.0:
        raise ConfigError(f"model transformer: dropout = {dropout}: must be in [0, 1)")
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    blocks["encoder1"] = nn.Sequential(
        OrderedDict(
            embedding=TokenEmbedding(vocabulary, embedding, length, dropout),
            layer=EncoderLayer(embedding, heads, hidden, dropout),
        )
    )
    for number in range(2, layers + 1):
        blocks[f"encoder{number}"] = EncoderLayer(embedding, heads, hidden, dropout)
    blocks["head"] = MeanPoolClassifier(embedding, classes)
    return nn.Sequential(blocks)


# Of the paper: EMB-100, ENC-100-5-100 x 6, FC, and EMB-100, ENC-100-50-100 x 12, FC.
transformer6 = partial(transformer, layers=6, heads=5)
transformer12 = partial(transformer, layers=12, heads=50)


class TokenEmbedding(nn.Module):
    """Token ids to scaled embeddings plus sinusoidal positions, with the padding mask."""

    positions: Tensor

    def __init__(self, vocabulary: int, embedding: int, length: int, dropout: float) -> None:
        super().__init__()
        self.scale = math.sqrt(embedding)
        self.tokens = nn.Embedding(vocabulary, embedding, padding_idx=PADDING)
        # Unit variance after scaling, as large as the positions it is added to.
        nn.init.normal_(self.tokens.weight, std=1.0 / self.scale)
        with torch.no_grad():
            self.tokens.weight[PADDING].zero_()
        # A function of the sizes alone, so neither sent nor merged nor saved.
        self.register_buffer("positions", _sinusoids(length, embedding), persistent=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Masked:
        embedded = self.tokens(tokens) * self.scale + self.positions[: tokens.shape[1]]
        return Masked(self.dropout(embedded), tokens == PADDING)


class EncoderLayer(nn.Module):
    """Self-attention, then a position-wise network; each normalised before, added after."""

    def __init__(self, embedding: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.hidden, self.rate = heads, hidden, dropout
        self.attention_norm = nn.LayerNorm(embedding)
        self.queries_keys_values = nn.Linear(embedding, 3 * embedding)
        self.joined = nn.Linear(embedding, embedding)
        self.feedforward_norm = nn.LayerNorm(embedding)
        self.feedforward = nn.Sequential(
            OrderedDict(
                expand=nn.Linear(embedding, hidden),
                relu=nn.ReLU(),
                dropout=nn.Dropout(dropout),
                project=nn.Linear(hidden, embedding),
            )
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, activation: Masked) -> Masked:
        hidden, mask = activation
        hidden = hidden + self.dropout(self._attend(self.attention_norm(hidden), mask))
        hidden = hidden + self.dropout(self.feedforward(self.feedforward_norm(hidden)))
        return Masked(hidden, mask)

    def _attend(self, hidden: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        projected: Tensor = self.queries_keys_values(hidden)
        mixed = attention(projected.view(batch, length, 3, self.heads, -1), mask)
        joined: Tensor = self.joined(mixed)
        return joined

    def alike(self, embedding: int) -> EncoderLayer:
        """A fresh layer of this kind (what an auxiliary copies)."""
        return EncoderLayer(embedding, self.heads, self.hidden, self.rate)


class MeanPoolClassifier(nn.Module):
    """The mean of the hidden states that are not padding, normalised, into a dense layer."""

    def __init__(self, embedding: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embedding)
        self.linear = nn.Linear(embedding, classes)

    def forward(self, activation: Masked) -> Tensor:
        words = (~activation.mask).unsqueeze(-1).to(activation.hidden.dtype)
        total = (self.norm(activation.hidden) * words).sum(dim=1)
        logits: Tensor = self.linear(total / words.sum(dim=1).clamp(min=1.0))
        return logits


def _sinusoids(length: int, embedding: int) -> Tensor:
    """Position encodings (Vaswani et al. 2017, section 3.5), (length, embedding)."""
    position = torch.arange(length).unsqueeze(1)
    even = torch.arange(0, embedding, 2)
    angles = position * torch.exp(even * (-math.log(10_000.0) / embedding))
    encoded = torch.empty(length, embedding)
    encoded[:, 0::2] = torch.sin(angles)
    encoded[:, 1::2] = torch.cos(angles[:, : embedding // 2])
    return encoded
