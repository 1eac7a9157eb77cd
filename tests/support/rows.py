"""The methods and the paper's two ablations, as rows of policies; and activation reuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from fedoptima.core.aggregation import AsyncStaleness, Buffered
from fedoptima.core.barrier import Barrier, OnLeave
from fedoptima.core.flow import CappedFlow, OpenFlow
from fedoptima.core.jobs import ServerOptimizer
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.reuse import LeastUsed, ReuseRule
from fedoptima.core.scheduler import CounterScheduler, FifoScheduler, InTurn

_REUSE = ReuseRule(batches=4, uses=2)


@dataclass(frozen=True)
class Options:
    """What the rows can be tuned by; each row takes what concerns it."""

    cap: int = 4
    credit_timeout: float | None = None
    max_delay: int = 100
    on_leave: OnLeave = "drop"
    barrier_timeout: float | None = None
    participation: float = 1.0
    buffer: int = 3
    micro_batches: int = 3
    train_every: int = 1
    overlap: bool = False
    reuse: ReuseRule = _REUSE


DEFAULTS = Options()

FULL = ProgramSpec("full")
DELTA = ProgramSpec("full", delta=True)
AUXILIARY = ProgramSpec("auxiliary")
GRADIENT = ProgramSpec("gradient")

Row = Callable[[Options], Method]


def _row(
    name: str,
    program: ProgramSpec,
    training: ServerTraining,
    aggregation: Callable[[], AsyncStaleness | Barrier | Buffered],
    flow: Callable[[], CappedFlow | OpenFlow] = OpenFlow,
    scheduler: Callable[[], CounterScheduler | FifoScheduler | InTurn] = FifoScheduler,
) -> Method:
    return Method(name, program, training, aggregation, scheduler, flow)


def _barrier(options: Options) -> Callable[[], Barrier]:
    return partial(
        Barrier,
        on_leave=options.on_leave,
        timeout=options.barrier_timeout,
        participation=options.participation,
        folds=True,
    )


def _auxiliary(options: Options) -> ProgramSpec:
    return ProgramSpec("auxiliary", train_every=options.train_every)


def _async(options: Options) -> Callable[[], AsyncStaleness]:
    return partial(AsyncStaleness, options.max_delay)


def fl(o: Options = DEFAULTS) -> Method:
    return _row("fl", FULL, ServerTraining.NONE, _barrier(o))


def fedasync(o: Options = DEFAULTS) -> Method:
    return _row("fedasync", FULL, ServerTraining.NONE, _async(o))


def fedbuff(o: Options = DEFAULTS) -> Method:
    buffered = partial(Buffered, o.buffer, o.max_delay, server_optimizer=ServerOptimizer(0.7))
    return _row("fedbuff", DELTA, ServerTraining.NONE, buffered)


def splitfed(o: Options = DEFAULTS) -> Method:
    return _row("splitfed", GRADIENT, ServerTraining.PER_DEVICE, _barrier(o))


def pipar(o: Options = DEFAULTS) -> Method:
    program = ProgramSpec("gradient", o.micro_batches)
    return _row("pipar", program, ServerTraining.PER_DEVICE, _barrier(o))


def oafl(o: Options = DEFAULTS) -> Method:
    return _row("oafl", GRADIENT, ServerTraining.PER_DEVICE, _async(o))


def fedoptima(o: Options = DEFAULTS) -> Method:
    flow = partial(CappedFlow, o.cap, timeout=o.credit_timeout)
    program = replace(_auxiliary(o), overlap=o.overlap)
    order = partial(InTurn, CounterScheduler) if o.overlap else CounterScheduler
    return _row("fedoptima", program, ServerTraining.SHARED, _async(o), flow, scheduler=order)


def cse_fsl(o: Options = DEFAULTS) -> Method:
    flow = partial(CappedFlow, o.cap, timeout=o.credit_timeout, balanced=False)
    return _row("cse_fsl", _auxiliary(o), ServerTraining.SHARED, _barrier(o), flow)


def reuse(o: Options = DEFAULTS) -> Method:
    return replace(fedoptima(o), name="reuse", reuse=partial(LeastUsed, o.reuse))


def fifo(o: Options = DEFAULTS) -> Method:
    flow = partial(CappedFlow, o.cap, timeout=o.credit_timeout, balanced=False)
    return _row("fifo", _auxiliary(o), ServerTraining.SHARED, _async(o), flow)


def no_auxiliary(o: Options = DEFAULTS) -> Method:
    return _row(
        "no auxiliary",
        GRADIENT,
        ServerTraining.SHARED,
        _async(o),
        scheduler=CounterScheduler,
    )


ROWS: dict[str, Row] = {
    row.__name__: row
    for row in (
        *(fl, fedasync, fedbuff, splitfed, pipar, oafl, cse_fsl),
        *(fedoptima, reuse, fifo, no_auxiliary),
    )
}
WITH_BARRIER = ("fl", "splitfed", "pipar", "cse_fsl")
WITHOUT_BARRIER = tuple(name for name in ROWS if name not in WITH_BARRIER)
CAPPED = ("fedoptima", "reuse", "fifo", "cse_fsl")
