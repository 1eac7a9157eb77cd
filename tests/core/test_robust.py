"""The core's part of robust merging: what the engine is given, and what a refusal counts for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedoptima.core.effects import Effect, Note
from fedoptima.core.jobs import Merge, RobustMerge
from fedoptima.core.messages import GlobalModel
from fedoptima.core.method import Method
from fedoptima.core.robust import as_text, refusals
from fedoptima.core.serialization import freeze, thaw
from fedoptima.core.server import ServerCore
from fedoptima.core.types import NodeId, Payload
from tests.support.bench import ServerBench, of, running_server, sent, update
from tests.support.rows import Options, fedasync, fl

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
WHY = "it moves the model against the fleet"


def refusing(method: Method) -> Method:
    return replace(method, robust="refuse")


def models(effects: list[Effect]) -> list[tuple[NodeId, int]]:
    return [(to, model.version) for to, model in sent(effects, GlobalModel)]


def base(bench: ServerBench) -> Payload | None:
    assert isinstance(bench.job, RobustMerge)
    return bench.job.bases[0]


def test_the_engine_is_given_the_model_that_each_round_began_with() -> None:
    bench = running_server(refusing(fedasync()), "a", "b")
    bench.says("a", update("a/0/5"))
    first = base(bench)
    assert first is not None
    bench.done()
    bench.says("b", update("b/0/5"))
    assert base(bench) == first
    bench.done()
    bench.says("a", update("a/0/9", version=1))
    second = base(bench)
    assert second is not None
    assert second != first


def test_a_model_that_the_device_was_not_sent_last_is_not_taken_for_its_base() -> None:
    bench = running_server(refusing(fedasync()), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.done()
    bench.says("a", update("a/0/9", version=0))
    assert base(bench) is None


def test_without_robust_merging_nothing_is_kept_and_the_job_is_the_plain_one() -> None:
    bench = running_server(fedasync(), "a", "b")
    bench.says("a", update("a/0/5"))
    assert type(bench.job) is Merge


def test_a_refused_update_makes_no_version_and_no_epoch_and_its_device_is_answered() -> None:
    bench = running_server(refusing(fedasync()), "a", "b")
    bench.says("a", update("a/0/5"))
    effects = bench.done(text=as_text({0: WHY}))
    assert of(effects, Note) == [Note("outlier refused", A, WHY)]
    assert models(effects) == [(A, 0)]
    assert bench.server.progress.epochs == 0
    bench.says("b", update("b/0/5"))
    assert models(bench.done()) == [(B, 1)]
    assert bench.server.progress.epochs > 0


def test_a_barrier_counts_those_that_were_merged() -> None:
    bench = running_server(refusing(fl()), "a", "b", "c")
    for name in ("a", "b", "c"):
        bench.says(name, update(f"{name}/0/5"))
    effects = bench.done(text=as_text({1: WHY}))
    assert of(effects, Note) == [Note("outlier refused", B, WHY)]
    assert models(effects) == [(A, 1), (B, 1), (C, 1)]
    progress = bench.server.progress
    assert progress.rounds == 1
    assert progress.epochs == pytest.approx(2 * 4 / bench.server.training.roster.shares.total)


def test_a_run_in_which_all_updates_are_refused_ends_and_says_the_way_out() -> None:
    bench = running_server(refusing(fedasync()), "a")
    held = bench.server.training.roster.shares.total
    for number in range(3):
        bench.says("a", update(f"a/0/{number}", trained=held))
        bench.done(text=as_text({0: WHY}))
    assert bench.server.progress.failed
    assert "use 'clip'" in (bench.server.progress.closing or "")


def test_what_the_core_remembers_of_models_survives_a_checkpoint() -> None:
    bench = running_server(refusing(fedasync()), "a", "b")
    bench.says("a", update("a/0/5"))
    kept = base(bench)
    restored = thaw(freeze(bench.server), {})
    assert isinstance(restored, ServerCore)
    assert restored.training.models.base_of(B, 0) == kept


def test_models_of_devices_that_are_gone_for_good_are_not_kept_for_ever() -> None:
    bench = running_server(refusing(fedasync(Options(max_delay=2))), "a", "b", "c")
    bench.leaves("b")
    for number in range(3):
        kept = bench.server.training.models.base_of(B, 0)
        assert kept is not None, "it may still come back with its update"
        bench.says("a", update(f"a/0/{number}", version=number))
        bench.done()
        bench.leaves("c")
        bench.joins("c")
    assert bench.server.training.models.base_of(B, 0) is None
    assert bench.server.training.models.base_of(C, 3) is not None


def test_refusals_are_read_as_they_were_written() -> None:
    assert refusals(as_text({2: "far", 0: "against"})) == {2: "far", 0: "against"}
    assert refusals(as_text({})) == {}
