"""A barrier that waits for devices that leave keeps what they have handed in."""

from __future__ import annotations

import pytest

from fedoptima.core.barrier import OnLeave
from fedoptima.core.effects import Effect, Note
from fedoptima.core.jobs import CloseCopy, Merge
from fedoptima.core.messages import ActivationBatch, GlobalModel, HandIn
from fedoptima.core.types import NodeId
from tests.support.bench import ServerBench, of, payload, running_server, sent, update
from tests.support.rows import ROWS, WITH_BARRIER, Options, fl, splitfed

A, B = NodeId("a"), NodeId("b")
WAITS = Options(on_leave="wait")


def versions(effects: list[Effect]) -> list[tuple[NodeId, int]]:
    return [(to, model.version) for to, model in sent(effects, GlobalModel)]


def merged(bench: ServerBench) -> list[str]:
    assert isinstance(bench.job, Merge)
    return [part.data.id for part in bench.job.parts]


@pytest.mark.parametrize("method", WITH_BARRIER)
def test_a_barrier_that_waits_keeps_the_update_of_a_device_that_left(method: str) -> None:
    bench = running_server(ROWS[method](WAITS), "a", "b")
    bench.says("a", update("a/0/5", trained=8))
    notes = of(bench.leaves("a"), Note)
    assert [(note.kind, note.about) for note in notes] == [("update kept", A)]
    assert bench.running is None  # a copy on the server stays until it is merged
    bench.says("b", update("b/0/5", trained=8))
    assert merged(bench) == ["a/0/5", "b/0/5"]
    assert versions(bench.done()) == [(B, 1)]
    if method in ("splitfed", "pipar"):
        assert bench.job == CloseCopy(A)
        bench.done()
    # Of the one that is here an epoch has 8 samples, and both have trained on as many.
    assert bench.server.progress.epochs == 2.0
    bench.says("b", update("b/0/9", version=1))
    assert bench.running is None  # the next round waits for the one that is away
    effects = bench.joins("a")
    assert versions(effects + (bench.done() if bench.running else [])) == [(A, 1)]


@pytest.mark.parametrize("method", WITH_BARRIER)
@pytest.mark.parametrize("pending", ["a/0/5", None])
def test_a_device_is_not_asked_again_for_an_update_that_a_barrier_has_kept(
    method: str, pending: str | None
) -> None:
    bench = running_server(ROWS[method](WAITS), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.leaves("a")
    effects = bench.joins("a", pending=pending)
    assert sent(effects, HandIn) == versions(effects) == []
    assert bench.running is None
    bench.says("b", update("b/0/5"))
    assert merged(bench) == ["a/0/5", "b/0/5"]
    assert versions(bench.done()) == [(A, 1), (B, 1)]
    assert bench.running is None


def test_an_update_that_waits_for_the_engine_is_kept_by_a_barrier_that_waits() -> None:
    bench = running_server(splitfed(WAITS), "a", "b")
    bench.says("b", ActivationBatch(0, payload("b/0/3")))
    bench.says("a", update("a/0/5"))
    bench.leaves("a")
    bench.done()  # the step of B
    bench.says("b", update("b/0/5"))
    assert merged(bench) == ["a/0/5", "b/0/5"]


@pytest.mark.parametrize("on_leave", ["wait", "keep"])
def test_an_update_that_waits_for_the_engine_is_kept_though_its_device_comes_and_leaves_again(
    on_leave: OnLeave,
) -> None:
    bench = running_server(splitfed(Options(on_leave=on_leave)), "a", "b")
    bench.says("b", ActivationBatch(0, payload("b/0/3")))
    bench.says("a", update("a/0/5"))
    for _ in range(2):
        bench.leaves("a")
        bench.joins("a")
    bench.leaves("a")
    bench.done()  # the step of B
    bench.says("b", update("b/0/5"))
    assert merged(bench) == ["a/0/5", "b/0/5"]
    assert not bench.server.training._kept


def test_of_a_history_that_is_gone_an_update_beside_the_kept_one_is_refused() -> None:
    """The server went back to a checkpoint from before the kept update was merged."""
    bench = running_server(fl(WAITS), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.leaves("a")
    bench.joins("a", training=True, version=1)
    assert versions(bench.says("a", update("a/0/9", version=1))) == []
    bench.says("b", update("b/0/5"))
    assert merged(bench) == ["a/0/5", "b/0/5"]
    assert versions(bench.done()) == [(A, 1), (B, 1)]
