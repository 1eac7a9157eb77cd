"""What a server trains on again while it has nothing else to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.errors import ConfigError, ProtocolViolation
from fedoptima.core.events import Rejected
from fedoptima.core.jobs import Job, ReusedStep, ServerStep
from fedoptima.core.messages import ActivationBatch
from fedoptima.core.reuse import LeastUsed, NoReuse, ReuseRule
from fedoptima.core.serialization import freeze, thaw
from fedoptima.core.types import NodeId, Payload, PayloadId
from tests.support import rows
from tests.support.bench import ServerBench, payload, running_server

A, B = NodeId("a"), NodeId("b")


def step(seq: int, device: NodeId = A, nbytes: int = 10) -> ServerStep:
    return ServerStep(device, 1, seq, Payload(PayloadId(f"{device}/0/{seq}"), nbytes), 0.5)


def filled(rule: ReuseRule, *steps: ServerStep) -> LeastUsed:
    reuse = LeastUsed(rule)
    for each in steps:
        reuse.keep(each, 0, here=True)
        reuse.check()
    return reuse


def chosen(reuse: LeastUsed, version: int = 0) -> list[tuple[int, int]]:
    """Sequence numbers and uses of all steps that are taken while nothing else comes."""
    steps = iter(lambda: reuse.next(version, 1.0), None)
    return [(found.seq, found.use) for found in steps if isinstance(found, ReusedStep)]


def test_the_least_used_batch_goes_first_and_of_those_the_oldest() -> None:
    reuse = filled(ReuseRule(batches=3, uses=2), step(1), step(2))
    assert chosen(reuse)[:3] == [(1, 1), (2, 1), (1, 2)]
    reuse = filled(ReuseRule(batches=3, uses=2), step(1), step(2))
    first = reuse.next(0, 1.0)
    reuse.keep(step(3), 0, here=True)
    assert first is not None
    assert [first.seq, *(seq for seq, _ in chosen(reuse))] == [1, 2, 3, 1, 2, 3]


def test_a_batch_is_used_so_many_times_and_then_the_server_rests() -> None:
    reuse = filled(ReuseRule(batches=2, uses=3), step(1))
    assert chosen(reuse) == [(1, 1), (1, 2), (1, 3)]
    assert reuse.kept == 0


def test_only_the_last_batches_are_kept() -> None:
    reuse = filled(ReuseRule(batches=2, uses=1), *map(step, range(5)))
    assert reuse.kept == 2
    assert chosen(reuse) == [(3, 1), (4, 1)]


def test_a_batch_is_not_used_again_after_too_many_merges() -> None:
    reuse = filled(ReuseRule(max_age=1, uses=1), step(1))
    reuse.keep(step(2), 1, here=True)
    assert chosen(reuse, version=2) == [(2, 1)]


def test_the_step_repeats_the_batch_at_the_progress_of_now() -> None:
    reuse = filled(ReuseRule(), step(7, nbytes=30), step(8, nbytes=12))
    found = reuse.next(0, 0.75)
    assert found == ReusedStep(A, 1, 7, step(7, nbytes=30).data, 0.75, use=1, kept=42)


def test_what_a_device_sent_is_forgotten_when_it_leaves_if_so_set() -> None:
    private = filled(ReuseRule(uses=1, on_leave="forget"), step(1), step(2, B))
    private.left(A)
    private.keep(step(3), 0, here=False)  # it left while this was trained on
    assert chosen(private) == [(2, 1)]
    usual = filled(ReuseRule(uses=1), step(1), step(2, B))
    usual.left(A)
    usual.keep(step(3), 0, here=False)
    assert chosen(usual) == [(1, 1), (2, 1), (3, 1)]


def test_what_must_not_be_used_is_forgotten_in_any_case() -> None:
    reuse = filled(ReuseRule(uses=1), step(1), step(2, B))
    reuse.forget(A)
    reuse.check()
    assert chosen(reuse) == [(2, 1)]


def rest_of(bench: ServerBench) -> list[Job]:
    """The jobs until there are none."""
    jobs = []
    while bench.job is not None:
        jobs.append(bench.job)
        bench.done()
    return jobs


def test_what_a_device_sent_is_forgotten_when_a_message_of_it_is_rejected() -> None:
    bench = running_server(rows.reuse(), "a", "b", drop_diverged=True)
    for name in ("a", "b"):
        bench.says(name, ActivationBatch(0, payload(f"{name}/0/1")))
    bench.done()
    bench.done()
    assert isinstance(bench.job, ReusedStep)
    with pytest.raises(ProtocolViolation, match="NaN"):
        bench.tell(Rejected(A, 1, "NaN", diverged=True))
    bench.leaves("a")  # the driver drops it
    assert {job.origin for job in rest_of(bench)[1:] if isinstance(job, ReusedStep)} == {B}


def test_what_is_being_trained_on_when_its_device_is_rejected_is_not_kept() -> None:
    bench = running_server(rows.reuse(), "a", "b", drop_diverged=True)
    for name in ("a", "b"):
        bench.says(name, ActivationBatch(0, payload(f"{name}/0/1")))
    assert isinstance(bench.job, ServerStep)
    assert bench.job.origin == A
    with pytest.raises(ProtocolViolation, match="NaN"):
        bench.tell(Rejected(A, 1, "NaN", diverged=True))
    bench.leaves("a")  # the driver drops it
    assert {job.origin for job in rest_of(bench) if isinstance(job, ReusedStep)} == {B}


def test_without_reuse_nothing_is_kept() -> None:
    reuse = NoReuse()
    reuse.keep(step(1), 0, here=True)
    assert reuse.next(0, 0.0) is None
    assert reuse.kept == 0


@pytest.mark.parametrize(("setting", "value"), [("batches", 0), ("uses", 0), ("max_age", -1)])
def test_a_rule_says_what_is_wrong_with_it(setting: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"method\.reuse\.{setting} = {value}: must be at least"):
        ReuseRule(**{setting: value})  # type: ignore[arg-type]


@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from([None, 0, 2]),
    st.lists(st.sampled_from(["fresh", "again", "merge", "leave"]), max_size=60),
)
def test_it_holds_to_its_bounds_whatever_happens_and_survives_storing(
    batches: int, uses: int, max_age: int | None, events: list[str]
) -> None:
    reuse = LeastUsed(ReuseRule(batches, uses, max_age, on_leave="forget"))
    used: dict[int, int] = {}
    version = 0
    for seq, event in enumerate(events):
        match event:
            case "fresh":
                reuse.keep(step(seq, A if seq % 2 else B), version, here=True)
            case "again":
                payloads: dict[PayloadId, object] = {}
                copy = thaw(freeze(reuse, payloads), payloads)
                assert isinstance(copy, LeastUsed)
                found = reuse.next(version, 0.0)
                assert copy.next(version, 0.0) == found
                if found is not None:
                    used[found.seq] = used.get(found.seq, 0) + 1
                    assert found.use == used[found.seq] <= uses
            case "merge":
                version += 1
            case "leave":
                reuse.left(A)
        reuse.check()
        assert reuse.kept <= batches
