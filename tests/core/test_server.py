"""The server's usual day: gathering, training, merging, measuring, ending."""

from __future__ import annotations

import pytest

from fedoptima.core.effects import Effect, Note
from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.events import JobDone
from fedoptima.core.jobs import CloseCopy, DeviceProfile, Merge, OpenCopy, PlanRun, ServerStep
from fedoptima.core.messages import (
    ActivationBatch,
    Assignment,
    GlobalModel,
    GradientBatch,
    HandIn,
    Join,
    Message,
    TurnOn,
)
from fedoptima.core.serialization import freeze
from fedoptima.core.settings import ServerSettings
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import NodeId
from fedoptima.testing.toy import PLAN
from tests.support.bench import ServerBench, of, payload, running_server, sent, update
from tests.support.effort import lines_executed
from tests.support.rows import (
    Options,
    fedasync,
    fedbuff,
    fedoptima,
    fl,
    no_auxiliary,
    oafl,
    splitfed,
)

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def batch(seq: int = 0) -> ActivationBatch:
    return ActivationBatch(seq, payload(f"x/0/{seq}"))


def gathering(devices: int = 2, **settings: object) -> ServerBench:
    stop = StopRule(rounds=10)
    return ServerBench(fl(), ServerSettings(stop, devices=devices, **settings))  # type: ignore[arg-type]


def models(effects: list[Effect]) -> list[tuple[NodeId, int]]:
    return [(to, model.version) for to, model in sent(effects, GlobalModel)]


# ---- gathering ---------------------------------------------------------------------------------


def test_the_server_plans_when_all_have_joined_in_order_of_name() -> None:
    bench = gathering(2)
    assert bench.joins("b") == []
    bench.joins("a", samples=3, flops_per_second=2.0)
    assert bench.job == PlanRun((DeviceProfile(A, 3, 2.0, 1.0), DeviceProfile(B, 8, 1.0, 1.0)))


def test_a_connection_alone_is_not_a_device() -> None:
    bench = gathering(1)
    bench.connects("a")
    assert bench.running is None


def test_after_its_patience_the_server_begins_with_those_who_are_there() -> None:
    bench = gathering(3, patience=5.0)
    bench.joins("a")
    assert bench.timers == {"gather": 5.0}
    bench.joins("b")
    bench.fire("gather")
    assert isinstance(bench.job, PlanRun)


def test_patience_with_nobody_begins_again_with_the_next_to_come() -> None:
    bench = gathering(3, patience=5.0)
    bench.joins("a")
    bench.leaves("a")
    assert bench.fire("gather") == []
    bench.joins("b")
    assert bench.timers == {"gather": 10.0}


def test_whoever_joins_while_the_server_plans_begins_with_the_others() -> None:
    bench = gathering(1)
    bench.joins("b")
    bench.joins("a")
    effects = bench.done(text=PLAN)
    assert [to for to, _ in sent(effects, Assignment)] == [A, B]
    assert models(effects) == [(A, 0), (B, 0)]


def test_a_device_that_left_while_the_server_planned_is_sent_nothing() -> None:
    bench = gathering(2)
    bench.joins("a")
    bench.joins("b")
    bench.leaves("a")
    assert models(bench.done(text=PLAN)) == [(B, 0)]


def test_a_run_may_begin_with_nobody_and_wait() -> None:
    bench = gathering(1)
    bench.joins("a")
    bench.leaves("a")
    assert bench.done(text=PLAN) == []
    assert models(bench.joins("b")) == [(B, 0)]


def test_one_pass_over_its_own_samples_is_a_round_unless_said_otherwise() -> None:
    bench = gathering(1, batch_size=3)
    bench.joins("a", samples=10)
    ((_, assignment),) = sent(bench.done(text=PLAN), Assignment)
    assert assignment == Assignment(PLAN, fl().program, 3)
    ((_, tiny),) = sent(bench.joins("b", samples=2), Assignment)
    assert tiny.iterations == 1


@pytest.mark.parametrize(
    "wrong", [{"samples": 0}, {"flops_per_second": 0.0}, {"bytes_per_second": -1.0}]
)
def test_impossible_figures_are_refused_and_change_nothing(wrong: dict[str, float]) -> None:
    bench = gathering(1)
    bench.connects("a")
    before = freeze(bench.server)
    figures = {"incarnation": 0, "samples": 8, "flops_per_second": 1.0, "bytes_per_second": 1.0}
    with pytest.raises(ProtocolViolation, match=next(iter(wrong))):
        bench.says("a", Join(**(figures | wrong)))  # type: ignore[arg-type]
    assert freeze(bench.server) == before


# ---- activations -------------------------------------------------------------------------------


def test_a_batch_is_trained_on_and_its_slot_goes_to_the_next_in_line() -> None:
    bench = running_server(fedoptima(Options(cap=1)), "a", "b")
    effects = bench.says("a", batch(7))
    step = bench.job
    assert isinstance(step, ServerStep)
    assert (step.origin, step.session, step.seq, step.return_gradient) == (A, 1, 7, False)
    assert sent(effects, TurnOn) == [(B, TurnOn())]
    assert bench.done() == []


def test_a_gradient_goes_back_where_the_program_needs_one() -> None:
    bench = running_server(no_auxiliary(), "a")
    bench.says("a", ActivationBatch(7, payload("x"), 1, 3))
    ((to, gradient),) = sent(bench.done(), GradientBatch)
    assert (to, gradient.seq, gradient.part) == (A, 7, 1)


def test_no_gradient_goes_to_a_session_that_is_over() -> None:
    bench = running_server(no_auxiliary(), "a", "b")
    bench.says("a", batch())
    bench.leaves("a")
    bench.joins("a")
    assert not sent(bench.done(), GradientBatch)


def test_models_go_before_activations() -> None:
    bench = running_server(fedoptima(), "a", "b")
    bench.says("a", batch())
    bench.says("b", batch())
    bench.says("b", update("b/0/9"))
    bench.done()
    assert isinstance(bench.job, Merge)


def test_a_credit_that_is_not_used_in_time_goes_on_and_the_late_batch_is_dropped() -> None:
    bench = running_server(fedoptima(Options(cap=1, credit_timeout=5.0)), "a", "b")
    assert bench.timers == {"credit": 5.0}
    assert sent(bench.fire("credit"), TurnOn) == [(B, TurnOn())]
    assert bench.timers == {"credit": 10.0}
    effects = bench.says("a", batch())
    assert of(effects, Note) == [Note("late batch dropped", A)]
    assert bench.running is None
    bench.says("b", batch())
    assert isinstance(bench.job, ServerStep)


def test_a_timer_that_comes_too_early_is_set_anew() -> None:
    bench = running_server(fedoptima(Options(cap=1, credit_timeout=5.0)), "a", "b")
    bench.now = 2.0
    bench.says("a", batch())  # in time; B has the credit now
    assert bench.fire("credit") != []
    assert bench.timers == {"credit": 7.0}


# ---- merging -----------------------------------------------------------------------------------


def test_a_merge_is_answered_with_the_new_version() -> None:
    bench = running_server(fedasync(), "a", "b")
    assert bench.says("a", update("a/0/5")) != []
    assert isinstance(bench.job, Merge)
    effects = bench.done()
    assert models(effects) == [(A, 1)]
    assert bench.server.version == 1


def test_a_refused_stale_update_still_gets_the_current_model() -> None:
    bench = running_server(fedasync(Options(max_delay=0)), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.done()
    effects = bench.says("b", update("b/0/5", version=0))
    assert of(effects, Note) == [Note("update refused", B, "1 versions behind")]
    assert models(effects) == [(B, 1)]
    assert bench.running is None


def test_a_version_ahead_of_the_server_is_refused_and_answered() -> None:
    bench = running_server(fedasync(), "a")
    effects = bench.says("a", update("a/0/5", version=3))
    why = "3 versions ahead: the server went back to an older checkpoint"
    assert of(effects, Note) == [Note("update refused", A, why)]
    assert models(effects) == [(A, 0)]


def test_a_refused_update_refreshes_the_devices_copy_as_well() -> None:
    bench = running_server(oafl(Options(max_delay=0)), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.done()
    assert not sent(bench.says("b", update("b/0/5", version=0)), GlobalModel)
    assert bench.job == OpenCopy(B, 1)
    assert models(bench.done()) == [(B, 1)]


def test_a_barrier_answers_all_at_once() -> None:
    bench = running_server(fl(), "a", "b", "c")
    for name in ("c", "a"):
        assert not sent(bench.says(name, update(f"{name}/0/5")), GlobalModel)
    bench.says("b", update("b/0/5"))
    assert models(bench.done()) == [(A, 1), (B, 1), (C, 1)]
    assert bench.server.progress.rounds == 1


def test_a_barrier_does_not_open_when_all_leave_at_once() -> None:
    bench = running_server(fl(), "a", "b", "c")
    for name in ("b", "c"):
        bench.says(name, update(f"{name}/0/5"))
    assert [device for device, _ in bench.server.leaving_order()] == [B, C, A]
    for device, _ in bench.server.leaving_order():
        bench.leaves(device)
    assert bench.job is None
    assert bench.server.version == 0


def test_a_buffered_delta_is_answered_at_once_with_the_model_as_it_is() -> None:
    bench = running_server(fedbuff(Options(buffer=2)), "a", "b")
    assert models(bench.says("a", update("a/0/5"))) == [(A, 0)]
    bench.says("b", update("b/0/5"))
    assert isinstance(bench.job, Merge)
    assert models(bench.done()) == [(B, 1)]


def test_a_barriers_time_that_is_over_while_a_job_runs_is_seen_when_it_ends() -> None:
    bench = running_server(splitfed(Options(barrier_timeout=5.0)), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.says("b", batch())
    assert isinstance(bench.job, ServerStep)
    assert bench.fire("barrier") == []  # and no timer in the past
    bench.done()
    assert isinstance(bench.job, Merge)


def test_the_barriers_timer_rests_when_nobody_waits_at_it() -> None:
    bench = running_server(fl(Options(barrier_timeout=5.0)), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.leaves("a")
    assert bench.fire("barrier") == []


# ---- broken protocol, broken invariants --------------------------------------------------------


@pytest.mark.parametrize(
    ("bench", "name", "message"),
    [
        (running_server(fl(), "a"), "a", batch()),
        (running_server(fedoptima(Options(cap=1)), "a", "b"), "b", batch()),
        (running_server(fl(), "a"), "a", HandIn()),
        (running_server(fl(), "a"), "a", GlobalModel(0, 0.0, payload("x"))),
    ],
    ids=["activations in fl", "no credit", "a server's word", "a model"],
)
def test_a_message_that_is_refused_leaves_the_server_as_it_was(
    bench: ServerBench, name: str, message: Message
) -> None:
    before = freeze(bench.server)
    with pytest.raises(ProtocolViolation):
        bench.says(name, message)
    assert freeze(bench.server) == before


def test_a_second_update_before_the_answer_is_refused() -> None:
    bench = running_server(fl(), "a", "b")
    bench.says("a", update("a/0/5"))
    before = freeze(bench.server)
    with pytest.raises(ProtocolViolation, match="not asked for"):
        bench.says("a", update("a/0/6"))
    assert freeze(bench.server) == before


def test_whoever_speaks_before_joining_is_refused() -> None:
    bench = running_server(fl(), "a")
    bench.connects("b")
    with pytest.raises(ProtocolViolation, match="before joining"):
        bench.says("b", update("b/0/1"))


def test_a_result_of_a_job_that_was_never_ordered_is_our_bug() -> None:
    bench = running_server(fl(), "a")
    with pytest.raises(InvariantBroken):
        bench.tell(JobDone(99, CloseCopy(A), payload("x")))


def test_the_effort_per_event_does_not_grow_with_the_fleet() -> None:
    def effort(fleet: int) -> int:
        names = [f"d{i:04d}" for i in range(fleet)]
        bench = running_server(fedoptima(Options(cap=2, credit_timeout=60.0)), *names)
        bench.checking = False  # which looks at everybody

        def one_round_trip() -> None:
            bench.says(names[0], batch())
            bench.done()
            bench.says(names[0], update("x/0/1"))
            bench.done()
            bench.leaves(names[1])
            bench.joins(names[1])

        return lines_executed(one_round_trip)

    assert effort(300) == effort(5)
