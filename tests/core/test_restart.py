"""After a server's restart: a barrier waits until all who were there are back."""

from __future__ import annotations

import pytest

from fedoptima.core.events import Restarted
from fedoptima.core.jobs import Merge
from fedoptima.core.messages import GlobalModel
from fedoptima.core.method import Method
from tests.support.bench import ServerBench, running_server, sent, update
from tests.support.rows import Options, fedasync, fl, splitfed


def restarted_server(method: Method, *names: str) -> ServerBench:
    """A run of these devices whose server has just been restarted."""
    bench = running_server(method, *names, patience=60.0)
    restart(bench)
    return bench


def restart(bench: ServerBench) -> None:
    bench.tell(Restarted())
    for device, _ in bench.server.leaving_order():
        bench.leaves(device)
    while bench.running is not None:  # copies are closed
        bench.done()


def is_back(bench: ServerBench, name: str) -> None:
    """It brings along an update that it has finished meanwhile."""
    bench.joins(name, version=0, pending=f"{name}/0/5")
    bench.says(name, update(f"{name}/0/5"))


@pytest.mark.parametrize("method", [fl, splitfed])
def test_a_barrier_opens_when_all_are_back(method: type[Method]) -> None:
    bench = restarted_server(method(), "a", "b", "c")
    for name in ("c", "a"):
        is_back(bench, name)
        assert bench.running is None, "merged a round without those who were still to come"
    is_back(bench, "b")
    assert isinstance(bench.job, Merge)
    assert [part.device for part in bench.job.parts] == ["a", "b", "c"]


def test_when_patience_is_over_those_who_are_back_go_on() -> None:
    bench = restarted_server(fl(), "a", "b")
    is_back(bench, "b")
    assert bench.timers["rejoin"] == 60.0
    bench.fire("rejoin")
    assert isinstance(bench.job, Merge)


def test_one_that_goes_again_is_still_waited_for() -> None:
    bench = restarted_server(fl(), "a", "b", "c")
    bench.joins("a")
    bench.leaves("a")
    for name in ("b", "c"):
        is_back(bench, name)
    assert bench.running is None
    is_back(bench, "a")
    assert isinstance(bench.job, Merge)


def test_when_all_are_back_one_that_leaves_is_not_waited_for() -> None:
    bench = restarted_server(fl(), "a", "b")
    bench.joins("a")
    is_back(bench, "b")
    bench.leaves("a")
    assert isinstance(bench.job, Merge)
    assert [part.device for part in bench.job.parts] == ["b"]


def test_a_second_restart_waits_for_those_the_first_one_waited_for() -> None:
    bench = restarted_server(fl(), "a", "b")
    bench.joins("b")
    bench.now = 10.0
    restart(bench)
    assert bench.timers["rejoin"] == 70.0
    is_back(bench, "b")
    assert bench.running is None
    is_back(bench, "a")
    assert isinstance(bench.job, Merge)


def test_a_newcomer_after_a_restart_is_in_the_round_that_follows() -> None:
    bench = restarted_server(fl(), "a")
    assert not sent(bench.joins("new"), GlobalModel)
    is_back(bench, "a")
    assert isinstance(bench.job, Merge)
    assert {to for to, _ in sent(bench.done(), GlobalModel)} == {"a", "new"}


def test_without_a_barrier_there_is_nothing_to_wait_for() -> None:
    bench = restarted_server(fedasync(), "a", "b")
    assert "rejoin" not in bench.timers
    is_back(bench, "b")
    assert isinstance(bench.job, Merge)


def test_before_the_plan_a_restart_changes_nothing() -> None:
    bench = ServerBench(fl(Options()))
    assert bench.tell(Restarted()) == []


def late_for_a_merge_when_the_server_dies() -> ServerBench:
    """The round of "a" alone is being merged, the update of "b" is there too; then a restart."""
    bench = running_server(fl(), "a", "b", patience=60.0)
    bench.leaves("b")
    bench.says("a", update("a/0/5"))
    assert isinstance(bench.job, Merge)
    is_back(bench, "b")
    bench.tell(Restarted())  # the merge is repeated
    for device, _ in bench.server.leaving_order():
        bench.leaves(device)
    return bench


def test_one_who_was_late_for_a_merge_is_waited_for_in_the_next_round() -> None:
    bench = late_for_a_merge_when_the_server_dies()
    bench.done()
    bench.joins("a", version=1, pending="a/0/9")
    bench.says("a", update("a/0/9", version=1))
    assert bench.running is None, "merged a round without the one who was still to come"
    is_back(bench, "b")  # with what it had: that is too old now
    bench.says("b", update("b/0/9", version=1))
    assert isinstance(bench.job, Merge)
    assert [part.device for part in bench.job.parts] == ["a", "b"]


def test_one_who_was_late_for_a_merge_is_sent_its_result() -> None:
    bench = late_for_a_merge_when_the_server_dies()
    assert not sent(bench.joins("b"), GlobalModel), "sent a model that is just being replaced"
    assert [(to, model.version) for to, model in sent(bench.done(), GlobalModel)] == [("b", 1)]


def test_one_who_was_late_for_a_merge_is_not_waited_for_longer_than_the_others() -> None:
    bench = late_for_a_merge_when_the_server_dies()
    bench.done()
    bench.joins("a", version=1, pending="a/0/9")
    bench.says("a", update("a/0/9", version=1))
    bench.fire("rejoin")
    assert isinstance(bench.job, Merge)


def test_a_barriers_time_that_ran_out_while_the_server_was_away_is_no_reason_to_go_on() -> None:
    bench = running_server(fl(Options(barrier_timeout=5.0)), "a", "b", "c", patience=60.0)
    bench.says("a", update("a/0/5"))
    bench.joins("new")  # waits for the next round
    bench.now = 10.0
    restart(bench)
    is_back(bench, "a")
    assert bench.running is None, "merged a round without those who were still to come"
    for name in ("b", "c"):
        is_back(bench, name)
    assert isinstance(bench.job, Merge)
    assert [part.device for part in bench.job.parts] == ["a", "b", "c"]


def test_a_device_with_a_later_update_is_answered_to_that_and_not_to_the_repeated_merge() -> None:
    """Else it would train a round that is too old before it begins."""
    bench = running_server(fedasync(), "a", "b")
    bench.says("a", update("a/0/5"))
    bench.tell(Restarted())  # the merge is repeated
    for device, _ in bench.server.leaving_order():
        bench.leaves(device)
    bench.joins("a", version=1, pending="a/0/9")  # it had the result before, and went on with it
    bench.says("a", update("a/0/9", version=1))
    assert not sent(bench.done(), GlobalModel)
    assert isinstance(bench.job, Merge)
    assert [part.data.id for part in bench.job.parts] == ["a/0/9"]
    assert [model.version for _, model in sent(bench.done(), GlobalModel)] == [2]
