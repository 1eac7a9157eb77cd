"""A barrier that keeps what was handed in has updates added up as they come, each once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedoptima.core.barrier import Barrier
from fedoptima.core.effects import Effect, Fold, Note
from fedoptima.core.errors import ConfigError
from fedoptima.core.events import Disconnected, Restarted
from fedoptima.core.jobs import CloseCopy, FoldedMerge, Merge
from fedoptima.core.messages import GlobalModel, HandIn
from fedoptima.core.serialization import freeze
from fedoptima.core.types import NodeId, PayloadId
from tests.core.offers import offer
from tests.support.bench import ServerBench, of, running_server, sent, update
from tests.support.rows import ROWS, WITH_BARRIER, Options, fl

A, B = NodeId("a"), NodeId("b")
KEEPS = Options(on_leave="keep")


def folded(effects: list[Effect]) -> list[tuple[PayloadId, float]]:
    return [(fold.part.data.id, fold.part.weight) for fold in of(effects, Fold)]


def merged(bench: ServerBench) -> list[tuple[str, float]]:
    assert isinstance(bench.job, FoldedMerge)
    assert all(part.data.value is None for part in bench.job.parts)
    return [(part.data.id, part.weight) for part in bench.job.parts]


def versions(effects: list[Effect]) -> list[tuple[NodeId, int]]:
    return [(to, model.version) for to, model in sent(effects, GlobalModel)]


@pytest.mark.parametrize("method", WITH_BARRIER)
def test_each_update_is_added_up_at_once_and_the_core_keeps_its_name_alone(method: str) -> None:
    bench = running_server(ROWS[method](KEEPS), "a", "b")
    assert folded(bench.says("a", update("a/0/5"))) == [("a/0/5", 8)]
    kept: dict[PayloadId, object] = {}
    freeze(bench.server, kept)
    assert kept["a/0/5"] is None  # type: ignore[index]
    effects = bench.says("b", update("b/0/5"))
    assert folded(effects) == [("b/0/5", 8)]
    assert merged(bench) == [("a/0/5", 0.5), ("b/0/5", 0.5)]
    order = [type(effect) for effect in effects]
    assert order.index(Fold) < len(order) - 1  # the merge's Run comes after it


@pytest.mark.parametrize("method", WITH_BARRIER)
def test_an_update_counts_though_its_device_left_and_nobody_waits_for_that(method: str) -> None:
    bench = running_server(ROWS[method](KEEPS), "a", "b")
    bench.says("a", update("a/0/5", trained=8))
    notes = of(bench.leaves("a"), Note)
    assert [(note.kind, note.about) for note in notes] == [("update kept", A)]
    bench.says("b", update("b/0/5", trained=8))
    assert [name for name, _ in merged(bench)] == ["a/0/5", "b/0/5"]
    assert versions(bench.done()) == [(B, 1)]
    if method in ("splitfed", "pipar"):
        assert bench.job == CloseCopy(A)
        bench.done()
    assert bench.server.progress.epochs == 2.0
    bench.says("b", update("b/0/9", version=1))
    assert [name for name, _ in merged(bench)] == ["b/0/9"]  # the next round is without it


@pytest.mark.parametrize("pending", ["a/0/5", None])
def test_a_device_that_is_back_gets_what_its_update_was_merged_into(pending: str | None) -> None:
    bench = running_server(fl(KEEPS), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.leaves("a")
    effects = bench.joins("a", pending=pending)
    assert sent(effects, HandIn) == versions(effects) == []
    bench.says("b", update("b/0/5"))
    assert versions(bench.done()) == [(A, 1), (B, 1)]
    bench.says("b", update("b/0/9", version=1))
    assert bench.running is None  # and is in the next round


def test_another_update_of_a_device_that_is_in_the_sum_is_refused() -> None:
    bench = running_server(fl(KEEPS), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.leaves("a")
    bench.joins("a", training=True)
    effects = bench.says("a", update("a/0/9"))
    assert folded(effects) == []
    assert [note.kind for note in of(effects, Note)] == ["update refused"]
    bench.says("b", update("b/0/5"))
    assert [name for name, _ in merged(bench)] == ["a/0/5", "b/0/5"]
    assert versions(bench.done()) == [(A, 1), (B, 1)]


def restart(bench: ServerBench) -> None:
    bench.tell(Restarted())
    for device, session in bench.server.leaving_order():
        bench.tell(Disconnected(device, session))


def test_a_restart_does_not_undo_what_was_added_up() -> None:
    """The sum is in the checkpoint: to hand it in again would count it twice."""
    bench = running_server(fl(KEEPS), "a", "b")
    bench.says("a", update("a/0/5"))
    restart(bench)
    assert sent(bench.joins("b", training=True), HandIn) == []
    bench.says("b", update("b/0/5"))
    assert [name for name, _ in merged(bench)] == ["a/0/5", "b/0/5"]
    assert versions(bench.done()) == [(B, 1)]
    bench.says("b", update("b/0/9", version=1))
    assert bench.running is None  # the next round waits for all from before the restart
    effects = bench.joins("a", pending="a/0/5")
    assert (sent(effects, HandIn), versions(effects)) == ([], [(A, 1)])


def test_who_is_not_back_after_a_restart_counts_and_is_not_waited_for() -> None:
    bench = running_server(fl(KEEPS), "a", "b", "c", patience=60.0)
    bench.says("a", update("a/0/5"))
    restart(bench)
    bench.joins("b", training=True)
    bench.fire("rejoin")
    bench.says("b", update("b/0/5"))
    assert [name for name, _ in merged(bench)] == ["a/0/5", "b/0/5"]
    bench.done()
    bench.says("b", update("b/0/9", version=1))
    assert [name for name, _ in merged(bench)] == ["b/0/9"]


def test_an_old_update_of_a_device_that_left_holds_nobody_up() -> None:
    made = Barrier(on_leave="keep", folds=True)
    for device in (A, B):
        made.enters(device, 0.0)
    made.reconsider(0.0)
    made.handed_in(A)
    made.left(A, 0.0)
    made.check()
    assert offer(made, A, based_on=1, version=2).refused
    assert set(made._missing) == {B}


@pytest.mark.parametrize("on_leave", ["drop", "wait"])
def test_updates_that_are_kept_or_taken_out_as_before_are_not_added_up(on_leave: str) -> None:
    bench = running_server(fl(Options(on_leave=on_leave)), "a", "b")  # type: ignore[arg-type]
    assert folded(bench.says("a", update("a/0/5"))) == []
    bench.says("b", update("b/0/5"))
    assert type(bench.job) is Merge
    assert all(part.data.value is not None for part in bench.job.parts)


def test_sums_and_robust_merging_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="compares all updates"):
        ServerBench(replace(fl(KEEPS), robust="refuse"))
