"""Words to numbers. A vocabulary is made from training text only: 0 is padding, 1 is unknown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor

PADDING = 0
UNKNOWN = 1
RESERVED = 2  # ids before the first word's

_LINE_BREAK = re.compile(r"<br\s*/?>")
_TOKEN = re.compile(r"\w+(?:'\w+)*|[^\w\s]")


def tokens(text: str) -> Iterator[str]:
    """Lower-case words and single punctuation marks, without HTML line breaks."""
    cleaned = _LINE_BREAK.sub(" ", text.lower())
    return (match.group() for match in _TOKEN.finditer(cleaned))


@dataclass(frozen=True)
class Vocabulary:
    words: tuple[str, ...]  # the word at position i has the id i + RESERVED

    @classmethod
    def from_texts(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """The most frequent words; ``size`` counts the two reserved ids too."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(tokens(text))
        # Equally frequent words in alphabetical order: the order of the texts must not matter.
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(tuple(ranked[: size - RESERVED]))

    def __len__(self) -> int:
        return len(self.words) + RESERVED

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: position + RESERVED for position, word in enumerate(self.words)}

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        """(texts, length) int32: the first ``length`` tokens of each text, padded at the end."""
        encoded = np.full((len(texts), length), PADDING, dtype=np.int32)
        for row, text in enumerate(texts):
            ids = [self._ids.get(token, UNKNOWN) for token in islice(tokens(text), length)]
            encoded[row, : len(ids)] = ids
        return torch.from_numpy(encoded)
