"""Random fleets, stop rules and misfortunes, for properties that are checked with hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from fedoptima.core.method import Method
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import NodeId
from fedoptima.sim.faults import Change, ChangeKind
from fedoptima.testing.world import Description, Device

Build = Callable[[int], Method]  # for that many devices

# A coarse grid, so that things often happen at the same instant.
TIMES = st.integers(0, 60).map(lambda quarter: quarter / 4)
_AFTERWARDS = 20.0
KINDS: tuple[ChangeKind, ...] = ("leave", "return", "cut", "restore", "hang", "bandwidth")

DEVICES = st.builds(
    Device,
    speed=st.sampled_from([0.5, 1.0, 1.5, 2.0, 8.0]),
    bytes_per_second=st.sampled_from([532.0, 1064.0, 4000.0, 1e5]),
    latency=st.sampled_from([0.0, 0.0, 0.25, 1.0]),
    samples=st.integers(1, 12),
    joins_at=st.one_of(st.just(0.0), st.just(0.0), TIMES),
)
ALIKE = st.builds(Device, speed=st.sampled_from([1.0, 1.5, 2.0]))  # none can be left far behind


def _changes(name: NodeId, kinds: Sequence[ChangeKind]) -> st.SearchStrategy[list[Change]]:
    speeds = st.sampled_from([300.0, 2000.0, 50000.0])
    return st.lists(
        st.builds(Change, TIMES, st.just(name), st.sampled_from(kinds), speeds), max_size=8
    )


def _recovery(name: NodeId, changes: Sequence[Change]) -> list[Change]:
    """Whatever has happened to it, the device is there and working afterwards."""
    restart: list[ChangeKind] = ["leave"] if any(c.kind == "hang" for c in changes) else []
    return [Change(_AFTERWARDS, name, kind) for kind in (*restart, "return", "restore")]


def stops() -> st.SearchStrategy[StopRule]:
    return st.one_of(
        st.builds(StopRule, rounds=st.integers(1, 4)),
        st.builds(StopRule, epochs=st.sampled_from([0.5, 1.0, 2.0])),
        st.builds(StopRule, hours=st.sampled_from([0.5 / 3600, 10 / 3600, 40 / 3600])),
        st.builds(
            StopRule,
            rounds=st.just(6),
            patience=st.sampled_from([0.25, 1.0]),
            hours=st.just(90 / 3600),
        ),
        st.builds(StopRule, rounds=st.just(8), target_accuracy=st.sampled_from([0.1, 0.7])),
    )


@st.composite
def descriptions(
    draw: st.DrawFn,
    methods: st.SearchStrategy[Build],
    *,
    kinds: Sequence[ChangeKind] = KINDS,
    stay_hung: bool = False,
) -> Description:
    """A run in which, in the end, somebody is left to finish it.

    With ``stay_hung`` devices that hang are never restarted; the first device does not hang.
    """
    build = draw(methods)
    devices = draw(st.lists(DEVICES, min_size=1, max_size=9))
    names = [NodeId(f"d{i}") for i in range(len(devices))]
    changes: list[Change] = []
    for number, name in enumerate(names):
        allowed = [kind for kind in kinds if not (stay_hung and kind == "hang" and number == 0)]
        happens = draw(_changes(name, allowed)) if draw(st.booleans()) else []
        hangs = any(change.kind == "hang" for change in happens)
        changes += happens
        if not (stay_hung and hangs):
            changes += _recovery(name, happens)
    # Who hangs before it has joined is not there to begin with: no use in waiting for all.
    patience: float | None = draw(st.sampled_from([2.0] if stay_hung else [None, 2.0]))
    on_time = sum(device.joins_at == 0 for device in devices)
    gather = max(1, on_time) if patience is None else len(devices)
    return Description(
        build(len(devices)),
        devices,
        stop=draw(stops()),
        changes=changes,
        server_speed=draw(st.sampled_from([1.0, 4.0, 64.0])),
        iterations=draw(st.sampled_from([None, 1, 2, 3])),
        evaluate_every=draw(st.sampled_from([0.1, 1.0])),
        gather=gather,
        gather_patience=patience,
        accuracy_rises=draw(st.booleans()),
        dry=draw(st.booleans()),
    )


@st.composite
def calm(draw: st.DrawFn, methods: st.SearchStrategy[Build]) -> Description:
    """Devices of about the same speed, all there for the whole run, which is long enough."""
    devices = draw(st.lists(ALIKE, min_size=2, max_size=6))
    method = draw(methods)(len(devices))
    drawn = getattr(method.aggregation(), "participation", 1.0)  # in some rounds only
    return Description(
        method,
        devices,
        stop=StopRule(rounds=8 if drawn == 1 else round(12 / drawn)),
        server_speed=draw(st.sampled_from([4.0, 64.0])),
    )
