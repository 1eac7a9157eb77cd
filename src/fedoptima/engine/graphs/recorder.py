"""Work on a stream of its own, recorded as a CUDA graph and replayed."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch

from fedoptima.core.machine import Outcome
from fedoptima.core.types import Payload
from fedoptima.engine.gpu_upload import Staged
from fedoptima.engine.streams import OnStream

_log = logging.getLogger(__name__)

T = TypeVar("T")
AT_FIRST = 2  # steps of each kind that are not recorded


@dataclass
class Recording(Generic[T]):
    graph: torch.cuda.CUDAGraph
    generator: torch.Generator
    made: T  # what the work returned: tensors that every replay fills again
    _draws: bool = True  # random numbers; known after the first replay

    def replay(self, seed: Callable[[], int] | None = None) -> T:
        """``seed``: for what it draws; work without one draws nothing."""
        if seed is None or not self._draws:
            self.graph.replay()
            return self.made
        self.generator.manual_seed(seed())
        self.graph.replay()
        self._draws = self.generator.get_offset() > 0
        return self.made


class Recorder:
    """A stream, and what is recorded on it."""

    def __init__(self, compute: torch.device, *, first: bool = False) -> None:
        """``first``: before the work of streams that are not. Torch also takes these streams from
        a set of their own; of the others it has 32, and then gives the same ones again: another
        thread could copy on one that is being recorded on."""
        self.compute = compute
        self.stream = torch.cuda.Stream(compute, priority=-1 if first else 0)  # type: ignore[no-untyped-call]
        # Dropout draws from the default generator, whose seed all graphs would share while they
        # run side by side.
        self._generator = torch.Generator(compute)

    def context(self) -> AbstractContextManager[object]:
        return OnStream(self.stream)

    def record(self, work: Callable[[], T], pool: Any = None) -> Recording[T]:
        """Call within `context`. ``pool``: memory that is shared with another recording, which is
        always replayed before this one."""
        graph = torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle() if pool is None else pool
        default = torch.cuda.default_generators[self.stream.device.index]
        shared = default.graphsafe_get_state()
        collects = gc.isenabled()
        gc.disable()  # what it frees could not be recorded
        default.graphsafe_set_state(self._generator.graphsafe_get_state())
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                made = work()
            finally:
                graph.capture_end()
        except BaseException:
            # Before 2.12 torch goes on as if it were recording (pytorch#180395), and then never
            # frees memory that several streams have used.
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self.stream.device.index, pool)
            raise
        finally:
            default.graphsafe_set_state(shared)
            if collects:
                gc.enable()
        return Recording(graph, self._generator, made)

    def staged(self, outcome: Outcome) -> Outcome:
        """With an event that tells when the result is there."""
        payload = outcome.result
        if not payload.value:
            return outcome
        value = Staged(payload.value, self.stream.record_event())  # type: ignore[arg-type]
        return replace(outcome, result=Payload(payload.id, payload.nbytes, value))


def say_why_not(node: str, error: Exception | str) -> None:
    _log.warning(
        "%s: steps cannot be recorded as CUDA graphs and are computed one by one (%s)",
        node,
        str(error).partition("\n")[0],
    )
