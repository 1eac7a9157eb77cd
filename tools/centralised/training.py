"""One training: a bare loop over a recipe's model and data, on CUDA as recorded graphs.

Everything a step needs lies on the device (data, order of the rows, crops, learning rates, the
number of the step), so on CUDA a step is the replay of one graph. On a CPU the same functions run
as they are. Texts of similar length share a batch, and a batch is as wide as its texts need: the
model gives the same for a text with less padding.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedoptima.config.schema import Recipe
from fedoptima.core.seeding import derive
from fedoptima.data.augment import CropAndFlip
from fedoptima.data.dataset import Dataset, Split
from fedoptima.data.vocabulary import PADDING, UNKNOWN
from fedoptima.models.registry import build_model
from tools.centralised.settings import Settings

CHUNK = 10  # steps handed to the GPU at a time; two chunks are on their way
SORTED = 50  # batches whose texts are sorted by length together
WIDTHS = 6  # of a batch of text
BLOCK = 500  # samples evaluated at a time, unless the recipe says otherwise

Step = Callable[[], None]


class Training:
    """Trains on ``dataset.train`` and counts what is right in ``judged`` as epochs end."""

    def __init__(
        self, recipe: Recipe, dataset: Dataset, judged: Split, settings: Settings, seed: int
    ) -> None:
        self.settings, self._seed, self._data = settings, seed, dataset
        device = dataset.train.labels.device
        options = dict(recipe.model.options)
        if settings.dropout is not None:
            options["dropout"] = settings.dropout
        torch.manual_seed(derive(seed, "model"))
        self._model = build_model(recipe.model.name, dataset.facts, options).to(device)
        if device.type == "cuda":
            self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._masters = _halved(self._model) if settings.bfloat16 else []

        self._lengths = _lengths(dataset.train.inputs) if dataset.kind == "text" else None
        self._judged = judged
        self._judged_lengths = _lengths(judged.inputs) if dataset.kind == "text" else None
        if self._judged_lengths is not None:
            self._judged_lengths, order = self._judged_lengths.sort()
            self._judged = judged.take(order.to(device))
        size = dataset.train.inputs.shape[1]
        self._widths = [8 * -(-size * part // (8 * WIDTHS)) for part in range(1, WIDTHS + 1)]
        if self._lengths is None:
            self._widths = [size]  # colours: all of them

        self._batch = min(settings.batch, len(dataset.train))
        self._per_epoch = len(dataset.train) // self._batch
        self._block = min(recipe.training.evaluation_batch or BLOCK, len(judged))
        self._every = max(1, settings.epochs // 20)  # epochs from one evaluation to the next
        zero = torch.zeros(1, dtype=torch.int64, device=device)
        self._step, self._from, self._right = zero.clone(), zero.clone(), zero.clone()
        self._rates = torch.tensor(settings.rates(settings.epochs * self._per_epoch), device=device)
        self._rate = torch.zeros((), device=device)
        self._order = zero.repeat(self._per_epoch * self._batch)
        self._crops = zero.repeat(len(self._order), 3)
        self._crop = dataset.augment if isinstance(dataset.augment, CropAndFlip) else None
        self._optimizer = _optimizer(
            self._masters or list(self._model.parameters()), settings, self._rate
        )
        self._train: dict[int, Step] = {w: partial(self._train_batch, w) for w in self._widths}
        self._evaluate: dict[int, Step] = {
            w: partial(self._evaluate_block, w) for w in self._widths
        }
        if device.type == "cuda":
            self._record(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]

    def run(self) -> Iterator[tuple[int, float]]:
        """Train; the share that is right after every epoch that is evaluated."""
        for epoch in range(1, self.settings.epochs + 1):
            before: torch.cuda.Event | None = None
            for step, width in enumerate(self._draw(epoch)):
                self._train[width]()
                if self._step.is_cuda and step % CHUNK == 0:
                    if before is not None:
                        before.synchronize()
                    before = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                    before.record()
            if epoch % self._every == 0 or epoch == self.settings.epochs:
                self._from.zero_()
                self._right.zero_()
                for start in range(0, len(self._judged), self._block):
                    rows = slice(start, start + self._block)
                    self._evaluate[self._width(self._judged_lengths, rows)]()
                yield epoch, int(self._right) / len(self._judged)

    def _draw(self, epoch: int) -> list[int]:
        """Send the epoch's order of the rows, and how each is cropped; the width of every batch."""
        generator = torch.Generator().manual_seed(derive(self._seed, "epoch", epoch))
        order = torch.randperm(len(self._data.train), generator=generator)[: len(self._order)]
        if self._lengths is not None:
            parts = torch.split(order, SORTED * self._batch)
            order = torch.cat([part[self._lengths[part].argsort()] for part in parts])
            shuffled = torch.randperm(self._per_epoch, generator=generator)
            order = order.view(self._per_epoch, self._batch)[shuffled].flatten()
        _send(order, self._order)
        if self._crop is not None:
            crops = torch.randint(
                0, 2 * self._crop.padding + 1, (3, len(order)), generator=generator
            )
            crops[2] = torch.randint(0, 2, (len(order),), generator=generator) * self._crop.flip
            _send(crops.t().contiguous(), self._crops)
        return [self._width(self._lengths, rows) for rows in torch.split(order, self._batch)]

    def _width(self, lengths: Tensor | None, rows: Tensor | slice) -> int:
        longest = 0 if lengths is None else int(lengths[rows].max())
        return next(width for width in self._widths if width >= longest)

    def _train_batch(self, width: int) -> None:
        settings, split, device = self.settings, self._data.train, self._order.device
        within = torch.arange(self._batch, device=device)
        places = self._step % self._per_epoch * self._batch + within
        rows = self._order.index_select(0, places)
        inputs, labels = split.inputs.index_select(0, rows), split.labels.index_select(0, rows)
        inputs = inputs[:, :width]
        if self._crop is not None:
            inputs = self._crop(inputs, self._crops.index_select(0, places))
        if settings.hide:
            drawn = torch.rand(inputs.shape, device=device) < settings.hide
            inputs = inputs.masked_fill(drawn & (inputs != PADDING), UNKNOWN)
        self._rate.copy_(self._rates.index_select(0, self._step)[0])
        self._model.train()
        loss = F.cross_entropy(
            self._logits(inputs), labels, label_smoothing=settings.label_smoothing
        )
        self._model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        weights = list(self._model.parameters())
        if self._masters:
            torch._foreach_copy_([m.grad for m in self._masters], [w.grad for w in weights])
        self._optimizer.step()
        if self._masters:
            torch._foreach_copy_([weight.detach() for weight in weights], self._masters)
        self._step += 1

    @torch.no_grad()
    def _evaluate_block(self, width: int) -> None:
        rows = self._from + torch.arange(self._block, device=self._order.device)
        inside = rows < len(self._judged)
        rows = rows.clamp(max=len(self._judged) - 1)
        self._model.eval()
        logits = self._logits(self._judged.inputs.index_select(0, rows)[:, :width])
        right = logits.argmax(dim=1) == self._judged.labels.index_select(0, rows)
        self._right += (right & inside).sum()
        self._from += self._block

    def _logits(self, inputs: Tensor) -> Tensor:
        batch = self._data.prepare(inputs)
        if self._masters:
            batch = batch.to(torch.bfloat16)
        if batch.is_cuda and batch.dim() == 4:
            batch = batch.contiguous(memory_format=torch.channels_last)
        logits: Tensor = self._model(batch)
        return logits.float()

    def _record(self, stream: torch.cuda.Stream) -> None:
        """Run every step a few times, for libraries that prepare themselves; undo it; record."""
        gc.collect()  # the graphs of an earlier training must not go away while one is recorded
        gc.disable()
        kept = [*self._model.state_dict().values(), *self._masters]
        before = [tensor.clone() for tensor in kept]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for steps in (self._train, self._train, self._evaluate):
                for step in steps.values():
                    step()
            for tensor, old in zip(kept, before, strict=True):
                tensor.copy_(old)
            for state in self._optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()
            self._step.zero_()
            self._model.zero_grad()
            stream.synchronize()
            for steps in (self._train, self._evaluate):
                for width, step in steps.items():
                    graph = torch.cuda.CUDAGraph()
                    graph.capture_begin()
                    step()
                    graph.capture_end()
                    steps[width] = graph.replay
        gc.enable()


def quick(device: torch.device) -> None:
    """Make the process ready for ``device``; products of float32 on CUDA round to TF32."""
    if device.type != "cuda":
        return
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True  # its first guesses for small images are bad
    torch.backends.cudnn.benchmark_limit = 4


def _lengths(texts: Tensor) -> Tensor:
    return (texts != PADDING).sum(dim=1).cpu()


def _halved(model: nn.Module) -> list[Tensor]:
    """Weights of products to bfloat16; those that the optimiser works on, which stay float32."""
    masters = [weight.detach().clone() for weight in model.parameters()]
    for master in masters:
        master.grad = torch.zeros_like(master)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.to(torch.bfloat16)
    return masters


def _optimizer(weights: list[Tensor], settings: Settings, rate: Tensor) -> torch.optim.Optimizer:
    decay = settings.weight_decay
    if settings.optimiser == "sgd":
        return torch.optim.SGD(
            weights, rate, momentum=0.9, nesterov=True, weight_decay=decay, fused=True
        )
    kind = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.Adam
    return kind(weights, rate, weight_decay=decay, fused=True, capturable=rate.is_cuda)


def _send(values: Tensor, place: Tensor) -> None:
    place.copy_(values.pin_memory() if place.is_cuda else values, non_blocking=True)
