"""Processes that draw items, so that the next batch is ready while this one trains."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol

import torch
from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.data.tensors import joined
from fedoptima.models.activation import Inputs

Drawn = tuple[Inputs, Tensor]


class Source(Protocol):
    def batch(self, numbers: Sequence[int], seeds: Sequence[int]) -> Drawn: ...


class Workers:
    """``count`` processes, started with the first batch; they end with the program."""

    def __init__(self, count: int, source: Source) -> None:
        self._count = count
        self._source = source
        self._pool: ProcessPoolExecutor | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_pool": None}  # a copy in another process starts its own

    def order(self, numbers: Sequence[int], seeds: Sequence[int]) -> Callable[[], Drawn]:
        """Begin to draw; the result waits for it."""
        if multiprocessing.current_process().daemon:
            # A process of `compare` or `run` may start none: others use the machine already.
            return lambda: self._source.batch(numbers, seeds)
        pool = self._pool = self._pool or self._start()
        size = -(-len(numbers) // self._count)
        parts = [slice(start, start + size) for start in range(0, len(numbers), size)]
        try:
            futures = [pool.submit(_draw, numbers[part], seeds[part]) for part in parts]
        except BrokenProcessPool as error:
            raise self._ended() from error
        return lambda: self._collected(futures)

    def _collected(self, futures: list[Future[bytes]]) -> Drawn:
        try:
            drawn: list[Drawn] = [pickle.loads(future.result()) for future in futures]
        except BrokenProcessPool as error:
            raise self._ended() from error
        inputs, labels = zip(*drawn, strict=True)
        return joined(inputs, torch.cat), torch.cat(labels)

    def _ended(self) -> ConfigError:
        return ConfigError(
            f"data.workers = {self._count}: a worker process has ended, perhaps because it could "
            "not import the dataset's module or for lack of memory; use data.workers = 0"
        )

    def _start(self) -> ProcessPoolExecutor:
        try:
            source = pickle.dumps(self._source)
        except Exception as error:  # whatever the dataset's own pickling raises
            raise ConfigError(
                f"data.workers = {self._count}: the dataset cannot be sent to other processes "
                f"({error}); define it at the top level of a module, or use data.workers = 0"
            ) from error
        # Not forked: this process has threads, which a fork would leave in any state.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._count, context, initializer=_adopt, initargs=(source,))


# ---- in a worker process -------------------------------------------------------------------------

_source: Source | None = None


def _adopt(source: bytes) -> None:
    global _source
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all processes
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    _source = pickle.loads(source)


def _draw(numbers: Sequence[int], seeds: Sequence[int]) -> bytes:
    """Pickled here: the queue's own way for tensors keeps a file open for each."""
    assert _source is not None
    return pickle.dumps(_source.batch(numbers, seeds))
