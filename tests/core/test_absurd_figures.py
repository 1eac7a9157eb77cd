"""Figures that are well-formed and absurd: refused, or of bounded effect on all others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.effects import Effect, Halt, Note, NoteKind
from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.jobs import DeviceProfile, Merge, PlanRun
from fedoptima.core.messages import GlobalModel, Join
from fedoptima.core.ranges import USUAL, unusual_speeds
from fedoptima.core.serialization import freeze
from fedoptima.core.settings import ServerSettings
from fedoptima.core.shares import LARGEST, Shares
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import NodeId
from fedoptima.testing.toy import PLAN
from tests.support.bench import ServerBench, of, running_server, sent, update
from tests.support.rows import Options, fedasync, fl

A, B, MALLORY = NodeId("a"), NodeId("b"), NodeId("mallory")
HONEST = {"incarnation": 0, "samples": 8, "flops_per_second": 1e9, "bytes_per_second": 1e6}

ABSURD = [
    ("samples", 0),
    ("samples", 10**18),
    ("samples", 10**9 + 1),
    ("flops_per_second", 5e-324),
    ("flops_per_second", math.nan),
    ("flops_per_second", math.inf),
    ("flops_per_second", 1e19),
    ("bytes_per_second", 5e-324),
    ("bytes_per_second", -1.0),
    ("bytes_per_second", 1e13),
    ("incarnation", -1),
    ("incarnation", 2**62),
    ("version", -2),
    ("version", 2**62),
    ("step", -1),
    ("step", 2**62),
]


@pytest.mark.parametrize(("field", "value"), ABSURD)
def test_a_join_outside_its_range_is_refused_by_name_and_the_run_continues(
    field: str, value: float
) -> None:
    bench = running_server(fedasync(), "a")
    bench.connects("mallory")
    before = freeze(bench.server)
    with pytest.raises(ProtocolViolation, match=rf"Join\.{field} = .*: must be from .* to "):
        bench.says("mallory", Join(**{**HONEST, field: value}))  # type: ignore[arg-type]
    assert freeze(bench.server) == before
    bench.says("a", update("a/0/1"))
    assert isinstance(bench.job, Merge)


@pytest.mark.parametrize("trained", [2**62, 9, -1])
def test_an_update_cannot_have_trained_on_more_than_its_round_and_end_the_run(trained: int) -> None:
    bench = running_server(fedasync(), "a", "mallory", stop=StopRule(epochs=2000))
    before = freeze(bench.server)
    expected = rf"ModelUpdate\.trained = {trained}: must be from 0 to 8$"  # 2 iterations of 4
    with pytest.raises(ProtocolViolation, match=expected):
        bench.says("mallory", update("mallory/0/1", trained=trained))
    assert freeze(bench.server) == before
    assert bench.server.progress.epochs == 0


def test_one_pass_over_little_data_cannot_have_trained_on_more_than_it_holds() -> None:
    bench = running_server(fedasync(), "a", iterations=None, batch_size=100)
    bench.says("a", update("a/0/1", trained=8))
    assert bench.server.progress.epochs == 1.0


@pytest.mark.parametrize("stays", [False, True])
def test_a_device_that_claims_a_billion_samples_does_not_stand_the_run_still(stays: bool) -> None:
    bench = running_server(fedasync(), "a", "b", stop=StopRule(epochs=2))
    effects = bench.joins("mallory", samples=10**9)
    (note,) = [n for n in of(effects, Note) if n.kind == NoteKind.SHARE_CAPPED]
    assert note == Note(
        "share capped", MALLORY, "of 1000000000 samples 80 count, 10 times the fleet's median"
    )
    if not stays:
        bench.leaves("mallory")
    ended: list[Effect] = []
    for version in range(30):
        for name in ("a", "b"):
            bench.says(name, update(f"{name}/0/{version}", version=version, trained=8))
            while bench.running is not None and not bench.asked:
                bench.done()
            if bench.asked:
                ended = bench.evaluated()
        if bench.server.stopped:
            break
    assert of(ended, Halt) == [Halt("2 epochs done")]
    # Two epochs of 16 samples; while mallory stays, of 96.
    assert version == (11 if stays else 1)


def test_one_device_alone_cannot_end_the_run_with_updates_that_are_too_late() -> None:
    bench = running_server(fedasync(Options(max_delay=0)), "a", "b", "c", "mallory")
    bench.says("a", update("a/0/1"))
    bench.done()
    for ticket in range(100):
        effects = bench.says("mallory", update(f"mallory/0/{ticket}", version=0, trained=8))
        assert sent(effects, GlobalModel)
    assert bench.server.progress.closing is None


@pytest.mark.parametrize("claimed", [10**9, 4000])
def test_no_claim_owns_the_average(claimed: int) -> None:
    names = [f"d{number}" for number in range(7)]
    bench = running_server(fl(), *names)
    bench.joins("mallory", samples=claimed)
    for version in (0, 1):  # whoever comes during a round is in the next one
        for name in (*names, "mallory"):
            if bench.server.members[NodeId(name)].owes_update:
                bench.says(name, update(f"{name}/0/{version}", version=version))
        merge = bench.job
        bench.done()
    assert isinstance(merge, Merge)
    weights = {part.device: part.weight for part in merge.parts}
    assert weights[MALLORY] == LARGEST / (LARGEST + 7)
    assert weights[NodeId("d0")] == 1 / (LARGEST + 7)


def planned(*claims: tuple[str, float, float]) -> tuple[list[NodeId], list[Note]]:
    bench = ServerBench(fl(), ServerSettings(StopRule(rounds=1), devices=len(claims)))
    for name, flops, rate in claims:
        effects = bench.joins(name, flops_per_second=flops, bytes_per_second=rate)
    job = bench.job
    assert isinstance(job, PlanRun)
    return [profile.device for profile in job.devices], of(effects, Note)


def test_a_device_that_claims_to_be_slow_is_not_planned_for_and_is_named() -> None:
    fleet = [("a", 1e9, 1e6), ("b", 9e9, 1e6), ("c", 2e9, 1e6)]
    assert planned(*fleet) == ([A, B, NodeId("c")], [])
    for lie in (("mallory", 1e3, 1e6), ("mallory", 1e9, 1.0)):
        devices, notes = planned(*fleet, lie)
        assert devices == [A, B, NodeId("c")]
        assert [(note.kind, note.about) for note in notes] == [("not planned for", MALLORY)]
        assert "within a factor of 10 of the fleet's median" in notes[0].text


def test_a_device_that_is_not_planned_for_trains_with_the_others() -> None:
    bench = ServerBench(fl(), ServerSettings(StopRule(rounds=1), devices=3))
    for name, flops in (("a", 1e9), ("b", 1e9), ("mallory", 1.0)):
        bench.joins(name, flops_per_second=flops)
    assert {to for to, _ in sent(bench.done(text=PLAN), GlobalModel)} == {A, B, MALLORY}


def test_where_every_device_would_be_left_out_none_is() -> None:
    odd = {A: DeviceProfile(A, 8, 1e3, 1e6), B: DeviceProfile(B, 8, 1e9, 1.0)}
    assert unusual_speeds(odd) == {}


speeds = st.floats(min_value=1.0, max_value=1e12)


@given(st.lists(st.tuples(speeds, speeds), min_size=3, max_size=12), speeds, speeds)
def test_one_device_moves_neither_bound_of_what_is_planned_for_beyond_its_neighbours(
    honest: list[tuple[float, float]], flops: float, rate: float
) -> None:
    fleet = {
        NodeId(f"d{i}"): DeviceProfile(NodeId(f"d{i}"), 8, o, b) for i, (o, b) in enumerate(honest)
    }
    fleet[MALLORY] = DeviceProfile(MALLORY, 8, flops, rate)
    if MALLORY not in unusual_speeds(fleet) and unusual_speeds(fleet):
        for claim, others in ((flops, [o for o, _ in honest]), (rate, [b for _, b in honest])):
            assert min(others) / USUAL <= claim <= max(others) * USUAL


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=30),
    st.integers(1, 10**9),
    st.integers(0, 10**9),
)
def test_no_claim_is_counted_as_more_than_its_multiple_of_the_median(
    held: list[int], claim: int, trained: int
) -> None:
    shares = Shares()
    for number, samples in enumerate(held):
        shares.add(NodeId(f"d{number}"), samples)
    alone = shares.total
    shares.add(MALLORY, claim)
    shares.check()
    counted = shares.counted(MALLORY)
    assert 1 <= counted <= LARGEST * sorted([*held, claim])[len(held) // 2]
    assert shares.total == sum(min(s, shares.largest) for s in [*held, claim])
    assert shares.epochs(MALLORY, claim) == pytest.approx(counted / shares.total)
    assert shares.epochs(MALLORY, min(trained, claim)) <= 1 + 1e-9
    shares.remove(MALLORY)
    shares.check()
    assert shares.total == alone
