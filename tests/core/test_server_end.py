"""How a run is measured and how it ends."""

from __future__ import annotations

import pytest

from fedoptima.core.effects import Drop, Effect, Evaluate, Halt, Note
from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.events import Extended, Rejected
from fedoptima.core.jobs import Merge
from fedoptima.core.messages import (
    ActivationBatch,
    Assignment,
    Failed,
    GlobalModel,
    Stop,
)
from fedoptima.core.method import Method
from fedoptima.core.robust import as_text
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import NodeId
from tests.support.bench import ServerBench, of, payload, running_server, sent, update
from tests.support.rows import (
    Options,
    fedasync,
    fedoptima,
    fl,
)

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def batch(seq: int = 0) -> ActivationBatch:
    return ActivationBatch(seq, payload(f"x/0/{seq}"))


def models(effects: list[Effect]) -> list[tuple[NodeId, int]]:
    return [(to, model.version) for to, model in sent(effects, GlobalModel)]


# ---- measuring and ending ----------------------------------------------------------------------


def spend(bench: ServerBench, name: str, version: int, *, trained: int = 8) -> list[Effect]:
    bench.says(name, update(f"{name}/0/{version}", version=version, trained=trained))
    return bench.done()


def test_an_evaluation_is_asked_for_each_epoch_after_the_merge() -> None:
    bench = running_server(fedasync(), "a", "b")  # 16 samples together
    assert not of(spend(bench, "a", 0), Evaluate)
    assert of(spend(bench, "a", 1), Evaluate) == [Evaluate(1, 1.0, 2)]


def test_a_budget_that_is_spent_ends_with_one_evaluation_and_a_farewell() -> None:
    bench = running_server(fedasync(), "a", "b", stop=StopRule(rounds=1))
    spend(bench, "a", 0)
    effects = spend(bench, "a", 1)
    assert effects == [Evaluate(1, 1.0, 2)]  # nobody is sent a model any more
    effects = bench.evaluated(0.5)
    assert sent(effects, Stop) == [(A, Stop("1 round done")), (B, Stop("1 round done"))]
    assert effects[-1] == Halt("1 round done")
    assert bench.server.stopped


def test_the_end_waits_for_the_job_that_runs() -> None:
    bench = running_server(fedoptima(), "a", stop=StopRule(hours=10.0 / 3600))
    bench.says("a", batch())
    assert bench.fire("time limit") == []
    assert bench.done() == [Evaluate(1, 0.0, 0)]
    assert bench.evaluated()[-1] == Halt("10 seconds are over")


def test_with_a_budget_of_time_a_model_carries_the_share_of_it_that_is_spent() -> None:
    """Whichever driver says what time it is: learning rates follow this share alone."""
    bench = running_server(fedasync(), "a", "b", stop=StopRule(hours=100.0 / 3600))
    shares = []
    for version, now in enumerate((25.0, 60.0, 100.0)):  # whatever was trained until then
        bench.now = now
        shares += [m.progress for _, m in sent(spend(bench, "a", version), GlobalModel)]
    assert shares == [0.25, 0.6, 1.0]


def test_weights_that_were_measured_already_are_not_measured_again() -> None:
    bench = running_server(fedasync(), "a", "b", stop=StopRule(target_accuracy=0.5))
    spend(bench, "a", 0)
    spend(bench, "a", 1)
    assert isinstance(bench.evaluated(0.6)[-1], Halt)


def test_what_comes_in_while_the_run_closes_is_not_used() -> None:
    bench = running_server(fedasync(), "a", "b", stop=StopRule(rounds=1))
    spend(bench, "a", 0)
    spend(bench, "b", 0)
    assert bench.says("a", update("a/0/9", version=1)) == []
    assert bench.joins("c") == []
    assert [to for to, _ in sent(bench.evaluated(), Stop)] == [A, B, C]


@pytest.mark.parametrize("method", [fedasync(), fedoptima(), fl()])
def test_who_comes_while_the_run_closes_is_no_part_of_it_when_it_is_extended(
    method: Method,
) -> None:
    bench = running_server(method, "a", stop=StopRule(hours=10.0 / 3600))
    spend(bench, "a", 0)
    bench.fire("time limit")
    bench.joins("c")
    bench.says("c", update("c/0/9", version=0))  # that it had from before
    bench.evaluated()
    assert bench.server.stopped
    bench.tell(Extended(StopRule(hours=20.0 / 3600)))
    for name in ("c", "a"):
        bench.leaves(name)
    assert list(bench.server.members) == []
    assert sent(bench.joins("c"), Assignment)  # as any device that comes


@pytest.mark.parametrize("method", [fedasync(), fedoptima(), fl()])
def test_who_leaves_while_the_run_closes_may_come_back_when_it_is_extended(
    method: Method,
) -> None:
    bench = running_server(method, "a", "b", stop=StopRule(hours=10.0 / 3600))
    if method.name == "fedoptima":
        bench.says("b", batch())  # runs
        bench.says("a", batch())  # waits
    bench.fire("time limit")
    assert bench.leaves("a") == []  # the others are told nothing any more
    while bench.running is not None:
        bench.done()
    while not bench.server.stopped:
        bench.evaluated()
    bench.tell(Extended(StopRule(hours=20.0 / 3600)))
    bench.leaves("b")
    assert bench.server.training.scheduler.buffered == 0
    assert sent(bench.joins("a"), Assignment)
    bench.server.check()


def test_patience_ends_the_run_at_the_next_answer() -> None:
    bench = running_server(fedasync(), "a", "b", stop=StopRule(patience=1.0))
    for version in range(4):
        spend(bench, "a", version)
    assert not bench.server.stopped
    bench.evaluated(0.5)
    effects = bench.evaluated(0.4)
    assert isinstance(effects[-1], Halt)
    assert "converged" in effects[-1].reason


def test_an_end_that_is_reached_twice_is_one_end() -> None:
    bench = running_server(
        fedasync(), "a", stop=StopRule(epochs=1.0, target_accuracy=0.5), evaluate_every=0.5
    )
    spend(bench, "a", 0, trained=4)  # asks for an evaluation
    spend(bench, "a", 1, trained=4)  # and spends the budget before the answer is there
    assert len(bench.asked) == 1
    assert [type(effect) for effect in bench.evaluated(0.9)] == [Evaluate]
    assert bench.evaluated(0.9)[-1] == Halt("1 epoch done")


def test_a_refused_update_is_no_part_of_an_epoch() -> None:
    bench = running_server(fedasync(Options(max_delay=0)), "a", "b", stop=StopRule(epochs=1.0))
    spend(bench, "a", 0)  # half an epoch
    effects = bench.says("b", update("b/0/1", version=0, trained=8))
    assert models(effects) == [(B, 1)]  # refused and answered
    assert bench.server.progress.epochs == 0.5
    assert sent(effects, GlobalModel)[0][1].progress == 0.5  # nor does the schedule move
    assert spend(bench, "b", 1) == [Evaluate(1, 1.0, 2)]


def test_a_run_in_which_no_update_is_accepted_any_more_fails_and_names_the_limit() -> None:
    names = [f"d{number}" for number in range(5)]
    bench = running_server(fedasync(Options(max_delay=0)), *names, iterations=10)
    # 40 samples together
    spend(bench, "d0", 0)
    for name in names[1:4]:
        bench.says(name, update(f"{name}/0/1", version=0, trained=39))
    assert not bench.asked
    bench.says("d4", update("d4/0/1", version=0, trained=3))  # 120 samples: three epochs
    (halt,) = of(bench.evaluated(), Halt)
    assert halt.failed
    assert "method.max_delay = 0" in halt.reason
    assert "Raise it" in halt.reason


def test_an_accepted_update_ends_a_row_of_refused_ones() -> None:
    bench = running_server(fedasync(Options(max_delay=0)), "a", "b", iterations=6)
    spend(bench, "a", 0)
    for version in range(1, 5):
        bench.says("b", update(f"b/0/{version}", version=version - 1, trained=24))
        spend(bench, "a", version)
    assert not bench.server.stopped


def test_updates_of_a_history_that_is_gone_do_not_fail_the_run() -> None:
    bench = running_server(fedasync(), "a", "b", iterations=20)  # went back to an older checkpoint
    for name in ("a", "b"):
        bench.says(name, update(f"{name}/0/9", version=7, trained=80))
    assert bench.server.progress.closing is None


def test_an_evaluation_that_fails_ends_the_run() -> None:
    bench = running_server(fedasync(), "a", "b")
    spend(bench, "a", 0)
    spend(bench, "a", 1)
    effects = bench.evaluation_fails("the loss is not a number")
    assert effects[-1] == Halt("the loss is not a number", failed=True)


def test_a_diverged_device_ends_the_run() -> None:
    bench = running_server(fedasync(), "a", "b")
    effects = bench.says("a", Failed("loss is nan", diverged=True))
    assert of(effects, Note) == [Note("device failed", A, "loss is nan")]
    assert effects[-1] == Halt("a: 'loss is nan'", failed=True)


@pytest.mark.parametrize("failure", [Failed("loss is nan", diverged=True), Failed("disk full")])
def test_a_failed_device_leaves_and_the_barrier_goes_on_without_it(failure: Failed) -> None:
    bench = running_server(fl(), "a", "b", drop_diverged=True)
    bench.says("b", update("b/0/5"))
    bench.says("a", failure)
    assert isinstance(bench.job, Merge)
    assert models(bench.done()) == [(B, 1)]


def test_a_device_whose_message_was_rejected_is_to_be_dropped() -> None:
    bench = running_server(fedasync(), "a", "b")
    with pytest.raises(ProtocolViolation, match="a wrong shape"):
        bench.tell(Rejected(A, 1, "a wrong shape"))
    assert bench.tell(Rejected(A, 0, "in a session that is over")) == []


def test_a_rejected_message_that_is_not_finite_counts_as_divergence() -> None:
    strict = running_server(fedasync(), "a", "b").tell(Rejected(A, 1, "NaN", diverged=True))
    assert of(strict, Note) == [Note("peer dropped", A, "NaN")]
    assert strict[-1] == Halt("a: NaN", failed=True)
    tolerant = running_server(fedasync(), "a", "b", drop_diverged=True)
    with pytest.raises(ProtocolViolation, match="NaN"):
        tolerant.tell(Rejected(A, 1, "NaN", diverged=True))


def test_a_job_on_the_updates_of_several_devices_that_fails_ends_the_run() -> None:
    bench = running_server(fl(), "a", "b")
    for name in ("a", "b"):
        bench.says(name, update(f"{name}/0/5"))
    effects = bench.fail("out of memory")
    assert sent(effects, Stop) == [(A, Stop("out of memory")), (B, Stop("out of memory"))]
    assert effects[-1] == Halt("out of memory", failed=True)


def test_a_job_on_what_one_device_sent_that_fails_drops_that_device() -> None:
    bench = running_server(fedasync(), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.says("b", update("b/0/5"))
    effects = bench.fail("no such type")
    assert effects[:2] == [Note("peer dropped", A, "no such type"), Drop(A, 1, "no such type")]
    assert isinstance(bench.job, Merge)  # of the other
    bench.leaves("a")
    assert [to for to, _ in sent(bench.done(), GlobalModel)] == [B]


def test_a_job_that_fails_with_every_device_ends_the_run() -> None:
    bench = running_server(fedasync(), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.fail("out of memory")
    bench.leaves("a")
    bench.says("b", update("b/0/5"))
    assert bench.fail("out of memory")[-1] == Halt("b: out of memory", failed=True)


def test_a_device_that_has_left_is_not_dropped_when_the_job_on_its_data_fails() -> None:
    bench = running_server(fedasync(), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.leaves("a")
    assert not of(bench.fail("no such type"), Drop)


def test_a_device_that_made_the_model_infinite_is_dropped_when_its_next_update_is_merged() -> None:
    bench = running_server(fl(), "a", "b", "c", drop_diverged=True)
    for name in ("a", "b", "c"):
        bench.says(name, update(f"{name}/0/5"))
    effects = bench.done(text=as_text({}, {1: "infinite"}))
    assert of(effects, Drop) == [Drop(B, 1, "infinite")]
    assert bench.server.version == 1


def test_it_ends_a_run_that_is_to_end_with_a_divergence() -> None:
    bench = running_server(fl(), "a", "b")
    for name in ("a", "b"):
        bench.says(name, update(f"{name}/0/5"))
    effects = bench.done(text=as_text({}, {1: "infinite"}))
    assert effects[-1] == Halt("b: infinite", failed=True)


def test_a_device_that_comes_after_the_end_is_told_so() -> None:
    bench = running_server(fedasync(), "a")
    bench.says("a", Failed("nan", diverged=True))
    ((to, _),) = sent(bench.joins("b"), Stop)
    assert to == B
