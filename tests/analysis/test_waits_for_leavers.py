"""Who waits at a barrier for a device that leaves or says nothing waits for a slower device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedoptima.analysis.idle_time import Usage
from fedoptima.core.effects import Note, NoteKind, Run
from fedoptima.core.events import Disconnected, TimerFired
from fedoptima.core.jobs import FoldedMerge, FullStep, Merge, Part, ServerOptimizer
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record
from tests.analysis.stories import (
    DATA,
    A,
    B,
    answers,
    connects,
    ends,
    halts,
    hands_in,
    loads,
    merge_of,
    plans,
    starts,
    told,
    usage,
    works,
)
from tests.experiments.runs import FLEET, run

C = NodeId("c")


def start(*devices: NodeId) -> list[Record]:
    """Everybody is there at 0, the plan is ready at 5, a model is loaded by 7."""
    records = [*connects(0.0, *devices), *plans(0.0, 5.0)]
    return [*records, *(record for device in devices for record in loads(6.0, 7.0, device))]


def test_until_the_device_has_left_and_not_only_until_the_last_update_came() -> None:
    merge = FoldedMerge(0.0, (Part(A, 1.0, DATA),), (A,))
    use = usage(
        [
            *start(A, B),
            *works(7.0, 9.0, A),
            hands_in(9.5, A),
            starts(7.0, B, FullStep(0)),
            told(14.0, SERVER, Disconnected(B, 1)),
            starts(15.0, SERVER, merge),  # until then it had something else to do
            ends(16.0, SERVER, merge, *answers(A)),
            *loads(17.0, 18.0, A),
            halts(18.0),
        ]
    )
    assert use[A] == Usage(busy=4.0, idle_1=3.5, idle_2=4.5)


@pytest.mark.parametrize("kind", [NoteKind.NOT_WAITED_FOR, NoteKind.DEVICE_FAILED])
def test_until_the_server_gives_it_up(kind: NoteKind) -> None:
    merge = merge_of(A, C)
    use = usage(
        [
            *start(A, B, C),
            hands_in(7.0, A),
            hands_in(9.0, C),
            told(30.0, SERVER, TimerFired("barrier"), Note(kind, B, ""), Run(1, merge)),
            ends(30.0, SERVER, merge, *answers(A, C)),
            halts(30.0),
        ]
    )
    assert (use[A].idle_2, use[C].idle_2) == (23.0, 21.0)


@pytest.mark.parametrize(
    "merge",
    [
        Merge(0.0, (Part(A, 1.0, DATA),), (A,)),  # FedAsync and FedOptima
        replace(merge_of(A, B), server_optimizer=ServerOptimizer()),  # FedBuff
    ],
)
def test_without_a_barrier_nobody_waits_for_others(merge: Merge) -> None:
    records = [
        *start(A, B),
        hands_in(9.0, A),
        told(9.5, SERVER, Disconnected(B, 1)),
        starts(10.0, SERVER, merge),
        ends(11.0, SERVER, merge, *answers(A)),
        halts(11.0),
    ]
    assert usage(records)[A].idle_2 == 0.0


@pytest.mark.parametrize(("method", "late"), [("fl", 0.52), ("splitfed", 0.155), ("cse_fsl", 0.5)])
def test_a_run_goes_on_when_the_slow_device_leaves_after_the_others_handed_in(
    method: str, late: float
) -> None:
    fast, options = NodeId("fast"), {"dry": True, "method": method, "epochs": 1}
    stable = run(**options).usage[fast]
    leaves = {"at": late, "device": "slow", "kind": "leave"}
    left = run(**options, fleet={**FLEET, "changes": [leaves]}).usage[fast]
    assert 0.8 * stable.idle_2 < left.idle_2 < stable.idle_2
    assert left.idle_1 == pytest.approx(stable.idle_1, rel=0.05)
