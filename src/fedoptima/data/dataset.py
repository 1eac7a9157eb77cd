"""What every other module knows about data: two splits of samples and how a batch is prepared.

Raw tensors stay small (uint8 images, int32 token ids) and are moved to a device once; they become
float batches only when they are used. A split is never written to after it is made. Training
samples may also be drawn one by one from the user's own dataset (`data.items`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.data.columns import Columns
from fedoptima.data.finite import check_inputs
from fedoptima.data.vocabulary import Vocabulary
from fedoptima.models.activation import Inputs, map_tensors, tensors_of
from fedoptima.tasks.labels import LabelRule
from fedoptima.tasks.output import Output
from fedoptima.tasks.ready import CLASSIFICATION
from fedoptima.tasks.task import Task

Kind = Literal["image", "text", "custom"]
Prepare = Callable[[Any], Any]  # inputs to inputs


class Augment(Protocol):
    """Changes raw training batches at random, in two halves: random numbers, and their use."""

    def draw(self, count: int, seed: int) -> Tensor:
        """The random numbers of that many samples, one row each, on the CPU."""
        ...

    def __call__(self, batch: Any, drawn: Tensor, /) -> Any:
        """The changed batch: a function of both tensors alone, computed where they are."""
        ...


class Samples(Protocol):
    """Training samples in a fixed order, in memory or drawn when they are used."""

    @property
    def labels(self) -> Tensor: ...

    @property
    def example(self) -> Inputs:
        """One input, as a batch."""
        ...

    @property
    def extent(self) -> tuple[float, float]:
        """The least and the greatest value in any input."""
        ...

    @property
    def device(self) -> torch.device:
        """Where batches are."""
        ...

    @property
    def index_device(self) -> torch.device:
        """Where row numbers have to be."""
        ...

    @property
    def in_advance(self) -> bool:
        """Is the drawing of a batch ordered before it is needed?"""
        ...

    def __len__(self) -> int: ...

    def take(self, rows: Tensor) -> Samples: ...

    def to(self, device: torch.device | str) -> Samples: ...

    def with_labels(self, labels: Tensor) -> Samples: ...

    def with_workers(self, count: int) -> Samples: ...

    def read(self) -> Split:
        """All of them in memory."""
        ...

    def order(self, rows: Tensor, *, seed: int, epoch: int) -> Callable[[], tuple[Inputs, Tensor]]:
        """Inputs and labels of these rows, when called."""
        ...


@dataclass(frozen=True, eq=False)
class Split:
    """Samples in memory: row ``i`` of every input tensor belongs to ``labels[i]``."""

    inputs: Inputs
    labels: Tensor

    in_advance = False

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def example(self) -> Inputs:
        return map_tensors(self.inputs, lambda tensor: tensor[:1])

    @property
    def extent(self) -> tuple[float, float]:
        ends = [tensor.aminmax() for tensor in tensors_of(self.inputs) if tensor.numel()]
        lows, highs = [float(low) for low, _ in ends], [float(high) for _, high in ends]
        return min(lows, default=0.0), max(highs, default=0.0)

    @property
    def tensor(self) -> Tensor:
        """The inputs, where they are one tensor."""
        assert isinstance(self.inputs, Tensor)
        return self.inputs

    @property
    def device(self) -> torch.device:
        return self.labels.device

    @property
    def index_device(self) -> torch.device:
        return self.device

    def take(self, rows: Tensor) -> Split:
        return Split(map_tensors(self.inputs, lambda tensor: tensor[rows]), self.labels[rows])

    def to(self, device: torch.device | str) -> Split:
        inputs = map_tensors(self.inputs, lambda tensor: tensor.to(device))
        return Split(inputs, self.labels.to(device))

    def with_labels(self, labels: Tensor) -> Split:
        return Split(self.inputs, labels)

    def with_workers(self, count: int) -> Split:
        return self  # there is nothing to draw

    def read(self) -> Split:
        return self

    def order(
        self, rows: Tensor, *, seed: int = 0, epoch: int = 0
    ) -> Callable[[], tuple[Inputs, Tensor]]:
        def chosen(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, rows)

        return lambda: (map_tensors(self.inputs, chosen), chosen(self.labels))


@dataclass(frozen=True, eq=False)
class Dataset:
    name: str
    kind: Kind
    train: Samples
    test: Split
    classes: int  # or numbers: what a model has to predict for a sample, or each place in it
    facts: Mapping[str, int]  # what a model's builder needs to know about the data
    prepare: Prepare  # raw batch -> what the model takes
    augment: Augment | None = None  # of raw batches; training only
    vocabulary: Vocabulary | None = None  # text: which word an id stands for
    columns: Columns | None = None  # of the training samples, for a partition by column
    class_names: tuple[str, ...] = ()  # in the order of their numbers, where they are known
    feature_names: tuple[str, ...] = ()  # of a table: its input columns, in their order
    task: Task = CLASSIFICATION  # what is learned of it

    def to(self, device: torch.device | str) -> Dataset:
        """The same data with its tensors on ``device``, so that no batch is copied there later."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def cached(self) -> Dataset:
        """The same with one draw of every training sample, kept in memory."""
        return replace(self, train=self.train.read())

    def with_workers(self, count: int) -> Dataset:
        """The same, with processes that draw training samples; none for samples in memory."""
        return replace(self, train=self.train.with_workers(count))

    def for_task(self, task: Task) -> Dataset:
        """The same, to learn this of it."""
        if task is self.task:
            return self
        train, test = (
            task.as_labels(part.labels, f"data set {self.name!r}: labels are")
            for part in (self.train, self.test)
        )
        classes = self.classes
        if task.size is not None or train.dtype != self.train.labels.dtype:
            classes = task.classes_in(train)
        changed = replace(
            self,
            train=self.train.with_labels(train),
            test=self.test.with_labels(test),
            classes=classes,
            facts={**self.facts, "classes": classes},
            task=task,
        )
        for part in (train, test):
            if len(part):
                task.check_labels(part, classes, f"data set {self.name!r}")
        return changed

    @property
    def output(self) -> Output:
        """What a model has to predict for a sample."""
        return self.task.output(self.train.labels, self.classes)

    @property
    def label_rule(self) -> LabelRule:
        return self.task.rule(self.train.labels, self.classes)

    def check(self, *, train_only: bool = False) -> Dataset:
        """Returns itself if every sample is valid; called once, where data enters the program.

        ``train_only``: there may be no test samples, as on a device.
        """
        parts: list[tuple[str, Samples]] = [("training", self.train)]
        if len(self.test) or not train_only:
            parts.append(("test", self.test))
        for part, split in parts:
            where = f"data set {self.name!r}, {part} part"
            if isinstance(split, Split):
                _check_lengths(split, where)
            if not len(split):
                raise ConfigError(f"{where}: is empty; give at least one sample")
            self.task.check_labels(split.labels, self.classes, where)
            if isinstance(split, Split):
                for tensor in tensors_of(split.inputs):
                    check_inputs(tensor, where)
        trained, tested = _sample_shapes(self.train.example), _sample_shapes(self.test.example)
        if self.train.labels.shape[1:] != self.test.labels.shape[1:]:
            raise ConfigError(
                f"data set {self.name!r}: labels of training samples have shape "
                f"{tuple(self.train.labels.shape[1:])}, of test samples "
                f"{tuple(self.test.labels.shape[1:])}; both must be the same"
            )
        if trained != tested:
            raise ConfigError(
                f"data set {self.name!r}: training samples have shape {_in_words(trained)}, test "
                f"samples {_in_words(tested)}; both must be the same"
            )
        return self


def _check_lengths(split: Split, where: str) -> None:
    tensors = tensors_of(split.inputs)
    for tensor in tensors:
        if len(tensor) != len(split.labels):
            several = f" in one of {len(tensors)} input tensors" if len(tensors) > 1 else ""
            raise ConfigError(
                f"{where}: {len(tensor)} inputs{several} but {len(split.labels)} labels; "
                "every input needs exactly one label"
            )


Shapes = dict[str, tuple[int, ...]]


def _sample_shapes(example: Inputs) -> Shapes:
    """By name or number."""
    names = list(example) if isinstance(example, dict) else range(len(tensors_of(example)))
    shapes = (tuple(tensor.shape[1:]) for tensor in tensors_of(example))
    return {str(name): shape for name, shape in zip(names, shapes, strict=True)}


def _in_words(shapes: Shapes) -> str:
    if list(shapes) == ["0"]:
        return str(shapes["0"])
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def stand_in(shape: Sequence[int], dtype: torch.dtype, per_class: Sequence[int]) -> Split:
    """Samples that take no memory: the numbers and shapes of real ones, for dry runs."""
    labels = torch.repeat_interleave(torch.arange(len(per_class)), torch.tensor(per_class))
    return Split(torch.ones((), dtype=dtype).expand(len(labels), *shape), labels)


def image_facts(inputs: Tensor, classes: int) -> dict[str, int]:
    return {"channels": inputs.shape[1], "image_size": inputs.shape[2], "classes": classes}


def text_facts(inputs: Tensor, vocabulary: int, classes: int) -> dict[str, int]:
    return {"vocabulary": vocabulary, "length": inputs.shape[1], "classes": classes}


# ---- from the raw batch that is stored to the batch that a model takes ---------------------------


@dataclass(frozen=True)
class Normalise:
    """uint8 pixels to float32 with mean 0 and deviation 1; both are given for pixels in 0..1."""

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    full_scale: int = 255

    def __call__(self, pixels: Tensor) -> Tensor:
        scale, shift = _scale_and_shift(self, pixels.device)
        return torch.addcmul(shift, pixels.to(torch.float32), scale)


@lru_cache(maxsize=64)
def _scale_and_shift(normalise: Normalise, device: torch.device) -> tuple[Tensor, Tensor]:
    # Kept per device: building them for every batch would be a copy to the GPU for every batch.
    mean = torch.tensor(normalise.mean, dtype=torch.float64).view(-1, 1, 1)
    deviation = torch.tensor(normalise.deviation, dtype=torch.float64).view(-1, 1, 1)
    scale = (1.0 / (deviation * normalise.full_scale)).to(device, torch.float32)
    return scale, (-mean / deviation).to(device, torch.float32)


def token_ids(tokens: Tensor) -> Tensor:
    """Ids are kept as int32 to halve their memory; embeddings are indexed by int64."""
    return tokens.to(torch.int64)


def as_given(inputs: Tensor) -> Tensor:
    return inputs
