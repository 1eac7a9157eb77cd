"""Random runs of our own methods, with random options."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from fedoptima.core.barrier import OnLeave
from fedoptima.core.reuse import ReuseRule
from fedoptima.sim.faults import ChangeKind
from fedoptima.testing.fleets import KINDS, Build
from fedoptima.testing.fleets import descriptions as random_runs
from fedoptima.testing.world import Description
from tests.support.rows import ROWS, Options

RULES = st.builds(
    ReuseRule,
    batches=st.sampled_from([1, 3, 64]),
    uses=st.integers(1, 3),
    max_age=st.sampled_from([None, 0, 2]),
    on_leave=st.sampled_from(["keep", "forget"]),
)


@st.composite
def rows(
    draw: st.DrawFn,
    methods: Sequence[str],
    delays: Sequence[int],
    barrier_timeouts: Sequence[float | None],
    on_leave: Sequence[OnLeave],
) -> Build:
    chosen = draw(st.sampled_from(methods))
    options = Options(
        cap=draw(st.integers(1, 9)),
        credit_timeout=draw(st.sampled_from([None, None, 0.5, 3.0, 30.0])),
        max_delay=draw(st.sampled_from(delays)),
        on_leave=draw(st.sampled_from(on_leave)),
        barrier_timeout=draw(st.sampled_from(barrier_timeouts)),
        participation=draw(st.sampled_from([1.0, 1.0, 0.5, 0.2])),
        buffer=draw(st.integers(1, 5)),
        micro_batches=draw(st.integers(1, 4)),
        train_every=draw(st.sampled_from([1, 1, 2, 5])),
        overlap=draw(st.booleans()),
        reuse=draw(RULES),
    )
    return lambda devices: ROWS[chosen](options)


def descriptions(
    *,
    methods: Sequence[str] = tuple(ROWS),
    kinds: Sequence[ChangeKind] = KINDS,
    stay_hung: bool = False,
    delays: Sequence[int] = (0, 1, 3, 100),
    barrier_timeouts: Sequence[float | None] = (None, 0.5, 5.0, 25.0),
    on_leave: Sequence[OnLeave] = ("drop", "keep", "wait"),
) -> st.SearchStrategy[Description]:
    build = rows(methods, delays, barrier_timeouts, on_leave)
    return random_runs(build, kinds=kinds, stay_hung=stay_hung)
