"""Devices that leave and come back: what they bring, what they are owed, and what is forgotten.

The stories with one server on the bench say exactly what is sent; those with `Pair` join real
devices to it and see that both sides agree.
"""

from __future__ import annotations

import pytest

from fedoptima.core.effects import Effect, Halt, Note
from fedoptima.core.jobs import CloseCopy, LoadModel, Merge, OpenCopy, PlanRun, ServerStep
from fedoptima.core.messages import (
    ActivationBatch,
    Assignment,
    Failed,
    GlobalModel,
    HandIn,
    Join,
    ModelUpdate,
    Stop,
    TurnOn,
)
from fedoptima.core.settings import ServerSettings
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId
from fedoptima.testing.toy import PLAN
from tests.support.bench import ServerBench, of, payload, running_server, sent, update
from tests.support.pair import Pair
from tests.support.rows import (
    ROWS,
    Options,
    fedasync,
    fedbuff,
    fedoptima,
    fl,
    oafl,
    splitfed,
)

A, B = NodeId("a"), NodeId("b")


def versions(effects: list[Effect]) -> list[tuple[NodeId, int]]:
    return [(to, model.version) for to, model in sent(effects, GlobalModel)]


def merged(bench: ServerBench) -> list[str]:
    assert isinstance(bench.job, Merge)
    return [part.data.id for part in bench.job.parts]


# ---- what a device brings back -----------------------------------------------------------------


def test_a_device_that_brings_nothing_gets_the_model() -> None:
    bench = running_server(fedasync(), "a")
    bench.leaves("a")
    assert versions(bench.joins("a")) == [(A, 0)]


def test_a_device_in_a_round_is_left_to_finish_it() -> None:
    bench = running_server(fedasync(), "a")
    bench.leaves("a")
    effects = bench.joins("a", training=True, version=0)
    assert sent(effects, Assignment)
    assert not sent(effects, GlobalModel)
    assert not sent(effects, HandIn)
    bench.says("a", update("a/0/5"))
    assert merged(bench) == ["a/0/5"]


def test_a_pending_update_is_asked_for_and_no_model_sent() -> None:
    bench = running_server(fedasync(), "a")
    bench.leaves("a")
    effects = bench.joins("a", pending="a/0/5")
    assert [to for to, _ in sent(effects, HandIn)] == [A]
    assert versions(effects) == []
    bench.says("a", update("a/0/5"))
    assert versions(bench.done()) == [(A, 1)]


def test_an_update_that_was_merged_is_not_asked_for_again() -> None:
    bench = running_server(fedasync(), "a")
    bench.says("a", update("a/0/5"))
    bench.done()
    bench.leaves("a")  # the answer is lost
    effects = bench.joins("a", pending="a/0/5")
    assert not sent(effects, HandIn)
    assert versions(effects) == [(A, 1)]


def test_an_update_that_was_refused_is_not_asked_for_again() -> None:
    bench = running_server(fedasync(), "a")
    bench.says("a", update("a/0/5", version=9))
    bench.leaves("a")
    assert versions(bench.joins("a", pending="a/0/5")) == [(A, 0)]


def test_a_device_that_returns_during_its_own_merge_is_answered_once() -> None:
    bench = running_server(fedasync(), "a")
    bench.says("a", update("a/0/5"))
    bench.leaves("a")
    assert versions(bench.joins("a", pending="a/0/5")) == []  # settled, not yet merged
    assert versions(bench.done()) == [(A, 1)]


def test_an_update_that_waits_for_the_engine_is_dropped_with_its_session() -> None:
    bench = running_server(fedoptima(), "a", "b")
    bench.says("b", ActivationBatch(0, payload("b/0/3")))
    bench.says("a", update("a/0/5"))
    bench.leaves("a")
    assert sent(bench.joins("a", pending="a/0/5"), HandIn)
    bench.done()
    assert bench.running is None  # the dropped one does not come up again
    bench.says("a", update("a/0/5"))
    assert merged(bench) == ["a/0/5"]


def test_an_update_given_up_by_a_barrier_is_handed_in_again_and_counted_once() -> None:
    bench = running_server(fl(), "a", "b")
    bench.says("a", update("a/0/5", trained=8))
    bench.leaves("a")
    assert sent(bench.joins("a", pending="a/0/5"), HandIn)
    bench.says("a", update("a/0/5", trained=8))
    bench.says("b", update("b/0/5", trained=8))
    assert merged(bench) == ["a/0/5", "b/0/5"]
    bench.done()
    assert bench.server.progress.epochs == 1.0


def test_a_buffered_delta_is_not_handed_in_twice() -> None:
    bench = running_server(fedbuff(Options(buffer=2)), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.leaves("a")
    assert versions(bench.joins("a", pending="a/0/5")) == [(A, 0)]
    bench.says("b", update("b/0/5"))
    assert merged(bench) == ["a/0/5", "b/0/5"]


def test_a_barrier_that_waited_only_for_the_one_who_left_opens() -> None:
    bench = running_server(fl(), "a", "b")
    bench.says("b", update("b/0/5"))
    bench.leaves("a")
    assert merged(bench) == ["b/0/5"]


def test_a_new_connection_replaces_the_old_one() -> None:
    bench = running_server(fl(), "a", "b")
    bench.says("b", update("b/0/5"))
    bench.connects("a")  # without a word about the end of the old one
    assert merged(bench) == ["b/0/5"]


def test_what_a_device_held_of_the_cap_is_free_when_it_leaves() -> None:
    bench = running_server(fedoptima(Options(cap=2)), "a", "b")
    bench.says("a", ActivationBatch(0, payload("a/0/3")))
    bench.says("b", ActivationBatch(0, payload("b/0/3")))  # waits behind the running step
    assert sent(bench.leaves("b"), TurnOn) == []  # A has its credit already
    assert sent(bench.joins("b"), TurnOn) == [(B, TurnOn())]


# ---- copies on the server ----------------------------------------------------------------------


def test_a_copy_is_closed_with_its_device_and_opened_before_the_model_goes_out() -> None:
    bench = running_server(oafl(), "a", "b")
    bench.leaves("a")
    assert bench.job == CloseCopy(A)
    bench.joins("a")
    bench.done()
    assert bench.job == OpenCopy(A, 2)
    assert versions(bench.done()) == [(A, 0)]


def test_behind_a_barrier_a_copy_is_opened_when_the_newcomers_round_begins() -> None:
    bench = running_server(splitfed(), "a", "b")
    bench.leaves("a")
    bench.joins("a")
    bench.done()  # the copy is closed
    assert bench.running is None
    bench.says("b", update("b/0/5"))
    assert versions(bench.done()) == [(B, 1)]
    assert bench.job == OpenCopy(A, 2)
    assert versions(bench.done()) == [(A, 1)]


def test_a_copy_for_a_session_that_is_over_is_never_opened() -> None:
    bench = running_server(oafl(), "a", "b")
    bench.says("b", update("b/0/5"))  # keeps the engine busy
    bench.leaves("a")
    bench.joins("a")
    bench.leaves("a")
    bench.done()
    assert bench.job == CloseCopy(A)
    bench.done()
    assert bench.job == CloseCopy(A)
    bench.done()
    assert bench.running is None


def test_no_model_goes_to_a_device_that_left_while_its_copy_was_opened() -> None:
    bench = running_server(oafl(), "a", "b")
    bench.leaves("a")
    bench.done()
    bench.joins("a")
    assert bench.job == OpenCopy(A, 2)
    bench.leaves("a")
    bench.connects("a")
    assert versions(bench.done()) == []


# ---- a server that starts anew, devices that do not --------------------------------------------


def fresh(devices: int) -> ServerBench:
    return ServerBench(fedasync(), ServerSettings(StopRule(rounds=9), devices=devices))


def test_an_update_handed_in_before_the_run_begins_is_asked_for_when_it_does() -> None:
    bench = fresh(2)
    bench.joins("a", training=True, version=7)
    assert bench.says("a", update("a/0/5", version=7)) == []
    bench.joins("b")
    assert isinstance(bench.job, PlanRun)
    effects = bench.done(text=PLAN)
    assert [to for to, _ in sent(effects, HandIn)] == [A]
    assert versions(effects) == [(B, 0)]
    # It belongs to a history that this server does not have.
    assert versions(bench.says("a", update("a/0/5", version=7))) == [(A, 0)]


def test_a_device_that_fails_before_the_run_begins_is_not_waited_for() -> None:
    bench = fresh(1)
    bench.joins("a", training=True)
    assert of(bench.says("a", Failed("disk full")), Note) == [Note("device failed", A, "disk full")]
    assert versions(bench.done(text=PLAN)) == []


@pytest.mark.parametrize("begun", [False, True])
def test_a_device_that_cannot_even_begin_says_why_and_may_try_again(begun: bool) -> None:
    bench = running_server(fedasync(), "b") if begun else fresh(2)
    bench.connects("a")
    assert bench.says("a", Failed("no such data")) == [Note("device failed", A, "no such data")]
    assert A not in bench.server.sessions
    assert bench.leaves("a") == []
    bench.joins("a")
    assert A in bench.server.members


def test_a_device_that_gave_up_its_work_for_the_new_plan_is_sent_a_model() -> None:
    bench = running_server(fedasync(), "b")
    assert sent(bench.joins("a", pending="a/0/5"), HandIn)
    again = Join(0, 8, 1.0, 1.0)
    assert versions(bench.says("a", again)) == [(A, 0)]


# ---- both sides together -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ROWS)
def test_three_rounds_go_through(method: str) -> None:
    pair = Pair(ROWS[method](), "a", "b", stop=StopRule(rounds=3))
    pair.play(lambda: pair.server.stopped and not pair.mail)
    assert all(device.stopped for device in pair.devices.values())
    assert pair.server.progress.rounds == 3
    assert pair.server_engine.evaluations >= 1


@pytest.mark.parametrize("method", ["fl", "fedasync", "fedbuff", "fedoptima"])
def test_a_pending_update_is_handed_in_once_after_reconnecting(method: str) -> None:
    pair = Pair(ROWS[method](), "a", "b")
    pair.play(lambda: any(m.sender == A and isinstance(m.message, ModelUpdate) for m in pair.mail))
    pair.cut("a")  # the update is lost on the way
    pair.connect("a")
    pair.play(lambda: pair.executed("a", LoadModel) == 2)
    assert pair.count("a", HandIn) == 1
    received = [m for to, m in pair.heard if to == SERVER and isinstance(m, ModelUpdate)]
    assert len({m.data.id for m in received}) == len(received)


@pytest.mark.parametrize("method", ["fedasync", "fedbuff", "fedoptima"])
def test_an_update_whose_answer_was_lost_is_not_merged_twice(method: str) -> None:
    pair = Pair(ROWS[method](Options(buffer=1)), "a")
    pair.play(lambda: pair.executed(SERVER, Merge) == 1)
    assert pair.on_its_way(GlobalModel, to="a")
    pair.cut("a")
    pair.connect("a")
    pair.play(lambda: pair.executed("a", LoadModel) == 2)
    assert pair.count("a", HandIn) == 0
    assert pair.executed(SERVER, Merge) == 1


@pytest.mark.parametrize("method", ROWS)
def test_a_connection_may_be_cut_after_any_number_of_steps(method: str) -> None:
    for before in range(40):
        for during in (0, 1, 3, 20):
            pair = Pair(ROWS[method](), "a", "b", stop=StopRule(rounds=3))
            _go_on(pair, before)
            pair.cut("a")
            _go_on(pair, during)
            pair.connect("a")
            while not pair.server.stopped:
                assert pair.step(), f"stalled: cut after {before} steps, for {during}"


def _go_on(pair: Pair, steps: int) -> None:
    for _ in range(steps):
        pair.step()


def test_a_device_that_trained_offline_hands_in_with_its_old_version() -> None:
    pair = Pair(fedasync(), "a", "b")
    pair.play(lambda: pair.executed("a", LoadModel) == 1)
    pair.cut("a")
    while A in pair.jobs:  # the whole round, offline
        pair.finish("a")
    pair.play(lambda: pair.server.version >= 2)  # others go on meanwhile
    pair.connect("a")
    pair.play(lambda: pair.count("a", HandIn) == 1)
    pair.play(lambda: any(m.sender == A and isinstance(m.message, ModelUpdate) for m in pair.mail))
    (mail,) = [m for m in pair.mail if m.sender == A]
    assert isinstance(mail.message, ModelUpdate)
    assert mail.message.version == 0


def test_a_run_that_ended_while_a_device_was_away_tells_it_so() -> None:
    pair = Pair(fedasync(), "a", "b", stop=StopRule(rounds=1))
    pair.play(lambda: pair.executed("a", LoadModel) == 1)
    pair.cut("a")
    pair.play(lambda: pair.server.stopped)
    pair.connect("a")
    pair.play(lambda: pair.devices[A].stopped)
    assert pair.count("a", Stop) == 1


def test_nobody_left_is_no_reason_to_halt() -> None:
    bench = running_server(fedasync(), "a")
    assert not of(bench.leaves("a"), Halt)
    assert versions(bench.joins("a")) == [(A, 0)]


def test_steps_of_a_device_that_left_are_dropped_with_it() -> None:
    bench = running_server(fedoptima(Options(cap=4)), "a", "b")
    for name in ("a", "b"):
        bench.says(name, ActivationBatch(0, payload(f"{name}/0/3")))
    assert isinstance(bench.job, ServerStep)
    bench.leaves("b")
    bench.done()
    assert bench.running is None
