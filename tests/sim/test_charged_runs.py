"""What the keys of a fleet that charge for more than FLOPs and links do to a whole run."""

from __future__ import annotations

import pytest

from fedoptima.core.effects import Run, Send
from fedoptima.core.events import JobDone, Received
from fedoptima.core.jobs import Forward, Job, Merge
from fedoptima.core.messages import ActivationBatch, TurnOn
from fedoptima.core.plan import Plan
from fedoptima.core.types import SERVER
from fedoptima.experiments.result import Result
from fedoptima.trace.record import Record
from tests.experiments.runs import CHURN, FLEET, TRAINING, run, set_up

METHODS = ["fedoptima", "fl", "fedasync", "splitfed", "pipar", "oafl"]


def dry(method: str = "fedoptima", **fleet: object) -> Result:
    return run(dry=True, method=method, fleet={**FLEET, **fleet})


def with_server(**keys: object) -> dict[str, object]:
    return {"server": {"gflops": 0.05, **keys}}


def with_devices(**keys: object) -> dict[str, object]:
    devices = FLEET["devices"]
    assert isinstance(devices, list)
    return {"devices": [{**device, **keys} for device in devices]}


@pytest.mark.parametrize("method", METHODS)
def test_a_wide_link_of_the_server_changes_nothing(method: str) -> None:
    assert dry(method, **with_server(mbps=1e9)).trace_digest == dry(method).trace_digest


@pytest.mark.parametrize(
    ("method", "churn"),
    [*((method, None) for method in METHODS), ("fedoptima", CHURN), ("oafl", CHURN)],
)
def test_all_devices_together_send_no_more_than_the_servers_link_carries(
    method: str, churn: object
) -> None:
    narrow = dry(method, **with_server(mbps=0.5), churn=churn)
    capacity = 0.5e6 / 8 * narrow.seconds
    assert capacity * 0.2 < narrow.bytes_up + narrow.bytes_down
    assert narrow.bytes_up <= capacity
    assert narrow.bytes_down <= capacity
    assert narrow.seconds > dry(method, churn=churn).seconds


def test_a_turn_on_does_not_wait_for_the_models_of_others() -> None:
    records: list[Record] = []
    set_up(records, dry=True, fleet={**FLEET, **with_server(mbps=0.1)}).simulation.run()
    sent, seen = {}, 0
    for record in records:
        for effect in record.effects:
            if isinstance(effect, Send) and isinstance(effect.message, TurnOn):
                sent[effect.to] = record.at
        if isinstance(record.event, Received) and isinstance(record.event.message, TurnOn):
            own = 64 / (2e6 / 8) + (0.002 if record.node == "middle" else 0.0)
            # Its own link may be carrying a model, which was there before.
            seen += record.at - sent[record.node] == pytest.approx(own)
    assert seen > 2


def test_what_a_cut_connection_had_on_the_servers_link_never_arrives() -> None:
    """Here a batch is a minute on the server's link, and its device is cut off meanwhile."""
    records: list[Record] = []
    changes = [
        {"at": 5.0, "device": "fast", "kind": "cut"},
        {"at": 6.0, "device": "fast", "kind": "restore"},
    ]
    fleet = {**FLEET, **with_server(mbps=0.001), "changes": changes}
    set_up(records, dry=True, fleet=fleet, stop={"hours": 0.05}).simulation.run()
    arrived = [
        record.event
        for record in records
        if record.node == SERVER
        and isinstance(record.event, Received)
        and record.event.sender == "fast"
    ]
    assert arrived[0].session == 1
    assert not any(
        isinstance(event.message, ActivationBatch) for event in arrived if event.session == 1
    )


def first(records: list[Record], node: str, kind: type[Job]) -> tuple[Job, float]:
    """A node's first job of a kind, and how long it took."""
    began: dict[int, float] = {}
    for record in records:
        if record.node != node:
            continue
        if isinstance(record.event, JobDone) and isinstance(record.event.job, kind):
            return record.event.job, record.at - began[record.event.ticket]
        began |= {effect.ticket: record.at for effect in record.effects if isinstance(effect, Run)}
    raise AssertionError(f"{node} has no {kind.__name__}")


def recorded(method: str, **fleet: object) -> tuple[list[Record], Plan]:
    records: list[Record] = []
    made = set_up(records, dry=True, method={"name": method}, fleet={**FLEET, **fleet})
    made.simulation.run()
    plan = made.server_engine.plan  # type: ignore[attr-defined]
    assert isinstance(plan, Plan)
    return records, plan


def test_a_device_pays_for_the_bytes_its_job_moves_and_its_overhead() -> None:
    plain, _ = recorded("fedoptima")
    charged, plan = recorded("fedoptima", **with_devices(memory_gb_s=0.001, overhead_ms=3.0))
    block, batch = plan.device_blocks[0], TRAINING["batch_size"]
    assert isinstance(batch, int)
    moved = block.forward_moved * batch + block.parameter_bytes
    assert block.forward_moved > 0
    for device in ("slow", "fast"):
        more = first(charged, device, Forward)[1] - first(plain, device, Forward)[1]
        assert more == pytest.approx(moved / 1e6 + 0.003)


@pytest.mark.parametrize(("method", "copies"), [("fedoptima", False), ("oafl", True)])
def test_a_server_pays_for_merging_and_refreshing_copies_where_there_are_any(
    method: str, copies: bool
) -> None:
    records, plan = recorded(method, **with_server(memory_gb_s=0.001))
    merge, seconds = first(records, SERVER, Merge)
    assert isinstance(merge, Merge)
    assert len(merge.parts) == len(merge.refresh) == 1
    extra = plan.auxiliary_profile
    parts = (*plan.device_blocks, *((extra,) if extra else ()))
    model, flops = sum(b.parameter_bytes for b in parts), 2 * 2 * sum(b.parameters for b in parts)
    moved = 3 * model + (5 * plan.server_bytes if copies else 0)
    assert seconds == pytest.approx(flops / 0.05e9 + moved / 1e6)


@pytest.mark.parametrize(
    "keys",
    [
        with_devices(memory_gb_s=0.001),
        with_devices(overhead_ms=2.0),
        with_devices(serialization_gb_s=0.0001),
        with_server(memory_gb_s=0.0001),
        with_server(overhead_ms=2.0),
        with_server(serialization_gb_s=0.0001),
    ],
    ids=str,
)
def test_each_cost_makes_a_run_longer(keys: dict[str, object]) -> None:
    assert dry("splitfed", **keys).seconds > dry("splitfed").seconds
